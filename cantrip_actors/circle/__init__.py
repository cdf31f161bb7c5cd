"""Gates at work, the standard gates, the mediums. Importing it makes them known by name: `Circle(gates=["fetch"])`."""

from cantrip_actors.circle.gate_call import GateError, run_gate
from cantrip_actors.circle.gates.echo import echo
from cantrip_actors.circle.gates.fetch import fetch
from cantrip_actors.circle.gates.files import list_files, read, search, write
from cantrip_actors.circle.javascript import offer as javascript_offer
from cantrip_actors.circle.medium import offer
from cantrip_actors.circle.python import offer as python_offer
from cantrip_actors.circle.shell import offer as shell_offer
from cantrip_actors.terms.gate import provide

__all__ = ["GateError", "echo", "fetch", "list_files", "read", "run_gate", "search", "write"]

provide(echo, fetch, list_files, read, search, write)
offer("python", python_offer.make)
offer("javascript", javascript_offer.make)
offer("shell", shell_offer.make)
