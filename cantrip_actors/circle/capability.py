"""The capability text of a circle: it describes the medium to the entity, after the system prompt."""

from __future__ import annotations

from typing import Final

from cantrip_actors.circle.medium import ProgramLimits, medium
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.user_code import Failure, attempt_now, text_of

_PERSON: Final = (
    "A text of yours without a call is shown to a person, and the reply is the next message that you get. {calls}"
    "Call done when the conversation is over."
)
_CALLS: Final = "With a call, a text is shown, too, but no reply comes. "
_PEOPLE: Final = (
    "Several people read your texts: {names}. Begin a text with @ and a name to address one of them. Each reply begins "
    "with the name of its author."
)


def make_capability(circle: Circle) -> str | None:
    """Return the capability text of a circle; None if its entities call tools and nothing else.

    Raises InvalidCantrip if its medium is not available here, or has no text.
    """
    if circle.language is not None:
        limits = ProgramLimits.under(circle.resolved)
        chosen = medium(circle.language)
        text = attempt_now(lambda: chosen.capability(circle.definitions, limits))
        if isinstance(text, Failure):
            error = text.exception
            raise InvalidCantrip(
                f"medium {circle.language}: expected capability to return a text for the gates of the circle, but it "
                f"raised {type(error).__name__}: {text_of(error)}"
            ) from error
        return text
    person = next((gate for gate in circle.gates if gate.kind == "person"), None)
    if person is None:
        return None
    text = _PERSON.format(calls=_CALLS if len(circle.definitions) > 1 else "")
    names = person.dependencies.get("to", ())
    return text if len(names) < 2 else f"{text}\n{_PEOPLE.format(names=', '.join(names))}"
