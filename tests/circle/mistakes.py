"""How a program comes to its mistake, in any language whose programs are given values."""

from cantrip_actors.circle.medium import Answer, Raised, Sandbox, Suspended

__all__ = ["error"]


def error(box: Sandbox, code: str) -> str:
    """Return the error text of the exception that leaves a program; its gates answer meanwhile."""
    step = box.begin(code)
    while isinstance(step, Suspended):
        step = box.answer(step, Answer(["milk"]))
    assert isinstance(step, Raised), step
    return step.error
