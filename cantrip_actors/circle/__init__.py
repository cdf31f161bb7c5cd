"""Gates at work and the standard gates. Importing it makes them known by name (`Circle(gates=["read"])`)."""

from cantrip_actors.circle.gates import GateError, run_gate

__all__ = ["GateError", "run_gate"]
