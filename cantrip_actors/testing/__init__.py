"""Tools for tests of agents: virtual time, crashes of the process at any point, models that no provider has, and people
who are a script.

    await run_with_crashes(program, [Crash(3), Crash(gate="pay", at="inside")])

`docs/testing.md` shows how to test an agent with them, and for every crash that Hypothesis thinks of.
"""

from typing import TYPE_CHECKING, Any

from cantrip_actors.testing.crashes import Crash, Crashed, Process, Survived, every_crash_point, run_with_crashes
from cantrip_actors.testing.mediums import BrokenLaw, MediumPrograms, check_medium
from cantrip_actors.testing.models import RealQuery, obedient, refuse_real_queries, replace, wild
from cantrip_actors.testing.people import Declined, people
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

if TYPE_CHECKING:
    from cantrip_actors.testing.entity_machine import EntityMachine

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


def __getattr__(name: str) -> Any:
    if name == "EntityMachine":  # it needs Hypothesis
        from cantrip_actors.testing.entity_machine import EntityMachine

        return EntityMachine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
