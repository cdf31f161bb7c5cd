"""Mediums of your own: a language in which entities act, for `Circle(medium=…)`.

    class Calculator(Medium):
        name, engine = "calculator", "calculator 1"

`docs/mediums.md` shows how to write one, and `cantrip_actors.testing.check_medium` checks that it keeps the laws. The
easiest sandbox is a `GeneratorSandbox`. The mediums of this package are of the same kind: `medium("python")`.
"""

from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.generator_sandbox import GeneratorSandbox, ProgramCall, ProgramError, ProgramRun
from cantrip_actors.circle.medium import (
    CLOSED,
    Answer,
    Exceeded,
    Finished,
    LimitExceeded,
    Medium,
    ProgramLimits,
    Raised,
    Sandbox,
    Stepped,
    Suspended,
    medium,
)

__all__ = [
    "CLOSED",
    "Answer",
    "Exceeded",
    "Finished",
    "GateError",
    "GeneratorSandbox",
    "LimitExceeded",
    "Medium",
    "ProgramCall",
    "ProgramError",
    "ProgramLimits",
    "ProgramRun",
    "Raised",
    "Sandbox",
    "Stepped",
    "Suspended",
    "medium",
]
