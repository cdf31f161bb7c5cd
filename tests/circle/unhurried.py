"""The steps before and after a tested program, which may be slow on a busy machine."""

from cantrip_actors.circle.medium import Sandbox, Stepped

__all__ = ["unhurried"]


def unhurried(sandbox: Sandbox, code: str) -> Stepped:
    """What a program comes to that has ten times the time that its sandbox gives the others."""
    usual, sandbox.limits = sandbox.limits, sandbox.limits.again()
    step = sandbox.begin(code)
    sandbox.limits = usual
    return step
