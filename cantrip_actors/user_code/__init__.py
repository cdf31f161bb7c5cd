"""Calling what users wrote (gates, steps around them, crystals), so that nothing they raise ends anything else."""

from cantrip_actors.user_code.attempt import Failure, Threads, attempt, attempt_now, leaves, text_of, watch

__all__ = ["Failure", "Threads", "attempt", "attempt_now", "leaves", "text_of", "watch"]
