"""Gates at work, the standard gates, the mediums. Importing it makes them known by name: `Circle(gates=["fetch"])`."""

from cantrip_actors.circle import javascript_offer, python_offer, shell_offer
from cantrip_actors.circle.echo import echo
from cantrip_actors.circle.fetch import fetch
from cantrip_actors.circle.files import list_files, read, search, write
from cantrip_actors.circle.gates import GateError, run_gate
from cantrip_actors.circle.medium import offer
from cantrip_actors.model.gate import provide

__all__ = ["GateError", "echo", "fetch", "list_files", "read", "run_gate", "search", "write"]

provide(echo, fetch, list_files, read, search, write)
offer("python", python_offer.make)
offer("javascript", javascript_offer.make)
offer("shell", shell_offer.make)
