"""The names of the gates without a function, for code that needs no gate: making gates takes time at import."""

from __future__ import annotations

from typing import Final

DONE: Final = "done"
CALL_AGENT: Final = "call_agent"
CALL_AGENT_BATCH: Final = "call_agent_batch"
POST: Final = "post"
ASK: Final = "ask"
QUESTION: Final = "question"
PERSON: Final = "person"
WAKE_ME: Final = "wake_me"
COMPACT: Final = "compact"
RECALL: Final = "recall"
LIST_CHILDREN: Final = "list_children"
MESSAGE_CHILD: Final = "message_child"
INTERRUPT_CHILD: Final = "interrupt_child"
CANCEL_CHILD: Final = "cancel_child"
WAIT_FOR_CHILDREN: Final = "wait_for_children"
OF_RUNTIME: Final = (
    *(CALL_AGENT, CALL_AGENT_BATCH, POST, ASK, QUESTION, PERSON, WAKE_ME, COMPACT, RECALL),
    *(LIST_CHILDREN, MESSAGE_CHILD, INTERRUPT_CHILD, CANCEL_CHILD, WAIT_FOR_CHILDREN),
)
"""The standard gates that the runtime carries out."""

FIND_GATES: Final = "find_gates"
USE_GATE: Final = "use_gate"
MCP_APPROVAL: Final = "mcp_approval"
APPROVED: Final = "approved"
"""The result of an approved call of `mcp_approval`. Each other result, even of a call that did not run, is a denial."""

DELEGATION: Final = frozenset((CALL_AGENT, CALL_AGENT_BATCH))
OF_CHILDREN: Final = frozenset((LIST_CHILDREN, MESSAGE_CHILD, INTERRUPT_CHILD, CANCEL_CHILD, WAIT_FOR_CHILDREN))
"""The gates by which an entity deals with children that work in the background."""
