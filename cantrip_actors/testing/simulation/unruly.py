"""A model that does anything, drawn from the seed of a simulation."""

from __future__ import annotations

import random
from typing import Any, Final

from cantrip_actors.crystal.scripted import Scripted, scripted
from cantrip_actors.terms.circle import Circle
from cantrip_actors.terms.messages import Invocation
from cantrip_actors.testing.json_values import make_value

_TEXTS: Final = ("", " ", "Let me think.", "done")
_STRANGE: Final[tuple[Any, ...]] = (None, True, -1, 0.5, "", [], {"a": {}})


def unruly(circle: Circle) -> Scripted:
    """Return a crystal that does anything: it draws each answer with `random`, so in a simulation from the seed.

    It calls gates with arguments that fit, that are missing or wrong, and gates that do not exist; it ends, says
    nothing, or answers with a text. `wild` is the same as a strategy for Hypothesis.
    """
    definitions = {definition.name: definition.parameters for definition in circle.all_definitions}

    def make_call() -> dict[str, Any]:
        name = random.choice([*definitions, *definitions, "no_such_gate"])
        args = make_value(definitions[name]) if name in definitions else {}
        if isinstance(args, dict) and args and random.random() < 0.3:
            key = random.choice(sorted(args))
            args = {other: value for other, value in args.items() if other != key}
            if random.random() < 0.5:
                args[key] = random.choice(_STRANGE)
        return {"gate": name, "args": args}

    def answer(_: Invocation) -> Any:
        if circle.medium != "tools" or random.random() < 0.2:
            return {"content": random.choice(_TEXTS)}
        return {"tool_calls": [make_call() for _ in range(random.randrange(1, 4))]}

    return scripted(answer, name="unruly")
