"""What comes before and after the programs that are tried: it may take its time on a machine that is busy."""

from cantrip_actors.circle.medium import Sandbox, Stepped

__all__ = ["unhurried"]


def unhurried(sandbox: Sandbox, code: str) -> Stepped:
    """What a program comes to that has ten times the time that its sandbox gives the others."""
    usual, sandbox.limits = sandbox.limits, sandbox.limits.again()
    step = sandbox.begin(code)
    sandbox.limits = usual
    return step
