"""The standard gates, for those who have something to give them: `Circle(gates=["done", read.with_(root="notes")])`.

A gate that needs nothing is named, as `"done"` is here; `standard(name)` is the gate behind such a name.
`wrap` puts steps around a gate, which may refuse its calls.
"""

from cantrip_actors.circle import GateError, echo, fetch, list_files, read, search, write
from cantrip_actors.model.gate import Gate, Injected, gate, standard
from cantrip_actors.model.wrapping import GateCall, Refused, wrap

__all__ = [
    "Gate",
    "GateCall",
    "GateError",
    "Injected",
    "Refused",
    "echo",
    "fetch",
    "gate",
    "list_files",
    "read",
    "search",
    "standard",
    "wrap",
    "write",
]
