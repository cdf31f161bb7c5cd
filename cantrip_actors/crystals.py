"""Crystals of providers, replayed recordings, and what is known of models."""

from cantrip_actors.crystal import Query, ask, resolve, testing
from cantrip_actors.crystal.breaker import Breaker, CircuitOpen
from cantrip_actors.crystal.client import Timeouts
from cantrip_actors.crystal.fallback import Fallback, fallback, worth_another
from cantrip_actors.crystal.families import anthropic, google, local, openai, openrouter
from cantrip_actors.crystal.limits import Limits
from cantrip_actors.crystal.openai import replayed
from cantrip_actors.crystal.prices import Model, Prices
from cantrip_actors.crystal.provider import ProviderCrystal
from cantrip_actors.crystal.replay import Outcome, Recording, faults, recordings, replay
from cantrip_actors.crystal.terms import Hedge, Limited, limited
from cantrip_actors.runtime.traffic import CrystalStatus

__all__ = [
    "Breaker",
    "CircuitOpen",
    "CrystalStatus",
    "Fallback",
    "Hedge",
    "Limited",
    "Limits",
    "Model",
    "Outcome",
    "Prices",
    "ProviderCrystal",
    "Query",
    "Recording",
    "Timeouts",
    "anthropic",
    "ask",
    "fallback",
    "faults",
    "google",
    "limited",
    "local",
    "openai",
    "openrouter",
    "recordings",
    "replay",
    "replayed",
    "resolve",
    "testing",
    "worth_another",
]
