"""Simulations: whole runtimes, several processes on one loom, with an order of events and faults from one seed.

    simulate(scenario, seed=17, nodes=3)

`docs/simulation.md` shows how to use them.
"""

from cantrip_actors.testing.simulation.faults import FAULT_KINDS, FaultKind, InjectedFault
from cantrip_actors.testing.simulation.outside import NotSimulated
from cantrip_actors.testing.simulation.process import SimulatedProcess
from cantrip_actors.testing.simulation.simulate import Simulated, SimulationFailed, simulate
from cantrip_actors.testing.simulation.unruly import unruly
from cantrip_actors.testing.simulation.world import SimulatedEvent

__all__ = [
    "FAULT_KINDS",
    "FaultKind",
    "InjectedFault",
    "NotSimulated",
    "Simulated",
    "SimulatedEvent",
    "SimulatedProcess",
    "SimulationFailed",
    "simulate",
    "unruly",
]
