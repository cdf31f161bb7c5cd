"""The standard gates, for a circle that gives them parameters: `Circle(gates=["done", read.with_(root="notes")])`.

A gate that needs none is named, as `"done"` is here; `standard(name)` returns the gate with that name.
`wrap` puts steps around a gate, which may refuse its calls.
"""

from cantrip_actors.circle.browser.shared_browser import browser
from cantrip_actors.circle.gate_call import GateError
from cantrip_actors.circle.gates.echo import echo
from cantrip_actors.circle.gates.fetch import fetch
from cantrip_actors.circle.gates.files import list_files, read, search, write
from cantrip_actors.circle.gates.skills import make_skill_gate
from cantrip_actors.terms.gate import Gate, standard
from cantrip_actors.terms.gate_function import Injected, gate
from cantrip_actors.terms.own_gates import ASK, BACKGROUND, COMPACT, PERSON, POST, QUESTION, RECALL, WAKE_ME
from cantrip_actors.terms.wrapping import Fence, GateCall, Refused, wrap

__all__ = [
    "Fence",
    "Gate",
    "GateCall",
    "GateError",
    "Injected",
    "Refused",
    "ask",
    "background",
    "browser",
    "compact",
    "echo",
    "fetch",
    "gate",
    "list_files",
    "person",
    "post",
    "question",
    "read",
    "recall",
    "search",
    "skills",
    "standard",
    "wake_me",
    "wrap",
    "write",
]

ask = ASK
background = BACKGROUND
compact = COMPACT
person = PERSON
post = POST
wake_me = WAKE_ME
question = QUESTION
recall = RECALL
skills = make_skill_gate
