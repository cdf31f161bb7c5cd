"""Tools for tests of agents: virtual time, crashes of the process at any point, models that no provider has, and people
who are a script.

    await run_with_crashes(program, [Crash(3), Crash(gate="pay", at="inside")])

`docs/testing.md` shows how to test an agent with them, and for every crash that Hypothesis thinks of.
"""

# Names are imported when they are first used: pytest imports the plugin in this package at each start, and only some of
# them need Hypothesis.

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cantrip_actors.testing.crashes import Crash, Crashed, Process, Survived, every_crash_point, run_with_crashes
    from cantrip_actors.testing.entity_machine import EntityMachine
    from cantrip_actors.testing.mediums import BrokenLaw, MediumPrograms, check_medium
    from cantrip_actors.testing.models import RealQuery, obedient, refuse_real_queries, replace, wild
    from cantrip_actors.testing.scripted_people import Declined, people
    from cantrip_actors.testing.simulation import (
        InjectedFault,
        NotSimulated,
        Simulated,
        SimulatedProcess,
        SimulationFailed,
        simulate,
        unruly,
    )
    from supervisors.testing import Stuck, virtual

__all__ = [
    "BrokenLaw",
    "Crash",
    "Crashed",
    "Declined",
    "EntityMachine",
    "InjectedFault",
    "MediumPrograms",
    "NotSimulated",
    "Process",
    "RealQuery",
    "Simulated",
    "SimulatedProcess",
    "SimulationFailed",
    "Stuck",
    "Survived",
    "check_medium",
    "every_crash_point",
    "obedient",
    "people",
    "refuse_real_queries",
    "replace",
    "run_with_crashes",
    "simulate",
    "unruly",
    "virtual",
    "wild",
]

_HOMES = {
    "cantrip_actors.testing.crashes": (
        *("Crash", "Crashed", "Process", "Survived"),
        *("every_crash_point", "run_with_crashes"),
    ),
    "cantrip_actors.testing.entity_machine": ("EntityMachine",),
    "cantrip_actors.testing.mediums": ("BrokenLaw", "MediumPrograms", "check_medium"),
    "cantrip_actors.testing.models": ("RealQuery", "obedient", "refuse_real_queries", "replace", "wild"),
    "cantrip_actors.testing.scripted_people": ("Declined", "people"),
    "cantrip_actors.testing.simulation": (
        *("InjectedFault", "NotSimulated", "Simulated", "SimulatedProcess", "SimulationFailed"),
        *("simulate", "unruly"),
    ),
    "supervisors.testing": ("Stuck", "virtual"),
}
"""Where each public name lives."""

_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
