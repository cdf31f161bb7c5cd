"""The parts of an utterance that a provider accepts when it is sent back, so that no answer makes later queries fail.

An utterance may come from any model, and from one that ignored its instructions: the loom keeps it as it was, and each
request has it in the form that the provider of this request accepts. `HISTORIES` has the rules of each provider, field
by field; each function below fits one field. The patterns are those that the providers document, or name in their
refusals.

| field | rule | where it does not fit |
|---|---|---|
| names of calls | `names` | a name made of it, the same in the call, its result and the definition of the tool |
| ids of calls | `ids` | an id made of it, the same in the call and its result |
| arguments | `depth` levels of objects and lists | deeper parts are sent as their JSON text |
| texts | `blank_texts` | a text without a word is left out |
| blocks of the provider | `needs`: fields that a block must have | the block is left out |
| citations, and other parts of a block | `strips`: fields that a request may not have | the field is left out |

Signatures are fields of blocks: a block goes back only to the provider and model that made it (`Writer`), and one
without its signature is left out. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Any, Final

from cantrip_actors.terms.messages import Message, ToolCall, ToolDefinition, as_text, find_named_gate

_ANY_WORDS: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FROM_A_LETTER: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
_ALL: Final = re.compile(r".*", re.DOTALL)
_IDS: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNNAMEABLE: Final = re.compile(r"[^a-zA-Z0-9_]+")
_MAPPED: Final = re.compile(r"\w*_x[0-9a-f]{12}", re.ASCII)
"""A name that `fit_name` may have made. It is mapped itself, so that no two names have the same one."""
_STEM: Final = 40
"""Characters of a name that the name made of it begins with."""


@dataclass(frozen=True, slots=True)
class HistoryRules:
    """The rules of one provider for the utterances of a history; the head of this file says how a field that breaks one
    is changed.
    """

    names: re.Pattern[str] = _ANY_WORDS
    ids: re.Pattern[str] = _IDS
    depth: int = 64
    blank_texts: bool = True
    needs: Mapping[str, str] = field(default_factory=dict)
    """By the type of a block: the field that it must have."""
    strips: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By the type of a block: the fields that a request may not have."""


_ANTHROPIC: Final = HistoryRules(
    blank_texts=False,
    needs={"thinking": "signature", "redacted_thinking": "data", "text": "text"},
    strips={"citations": frozenset({"file_id"})},
)
_OPENAI: Final = HistoryRules(
    needs={"reasoning": "encrypted_content"},
    # nothing is stored, so ids mean nothing; the status of an item is the provider's
    strips=dict.fromkeys(("message", "reasoning", "function_call", "custom_tool_call"), frozenset({"id", "status"})),
)
_CHAT: Final = HistoryRules()
_GEMINI: Final = HistoryRules(names=re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}"), depth=32)

HISTORIES: Final[Mapping[str, HistoryRules]] = {
    "anthropic": _ANTHROPIC,
    "openai": _OPENAI,
    "azure": _OPENAI,
    "xai": _OPENAI,
    "openai-chat": _CHAT,
    "azure-chat": _CHAT,
    "local": _CHAT,
    "ollama": _CHAT,
    "openrouter": replace(_CHAT, names=_FROM_A_LETTER, depth=32),  # a model of any provider may be behind it
    "mistral": replace(_CHAT, ids=re.compile(r"[a-zA-Z0-9]{9}")),
    "cohere": replace(_CHAT, names=re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")),
    "google": _GEMINI,
    # Claude or Gemini
    "vertex": replace(_ANTHROPIC, names=_FROM_A_LETTER, depth=32),
    "bedrock": HistoryRules(
        names=_FROM_A_LETTER,  # models of other makers accept fewer names than Claude
        blank_texts=False,
        needs={"reasoningText": "signature"},
        strips={"text": frozenset({"citations"})},
    ),
}
"""The rules of each provider, by `Family.provider`."""

AS_TEXT: Final = HistoryRules(names=_ALL)
"""The rules of a history whose calls are texts."""


def fit_name(name: str, rules: HistoryRules) -> str:
    """Return the name under which a provider knows a tool: the name itself if it accepts it, else one made of it.

    The result depends on the name alone, and no two names have the same one.

    >>> fit_name("browser.tabs.open", HISTORIES["anthropic"]), fit_name("read_file", HISTORIES["anthropic"])
    ('browser_tabs_open_x0637b90d95d5', 'read_file')
    """
    if rules.names.fullmatch(name) and not _MAPPED.fullmatch(name):
        return name
    stem = _UNNAMEABLE.sub("_", name).strip("_")[:_STEM] or "tool"
    if stem[0].isdigit():
        stem = f"tool_{stem}"
    return f"{stem}_x{hashlib.blake2b(name.encode(), digest_size=6).hexdigest()}"


def is_sent_name(sent: object, name: str, rules: HistoryRules) -> bool:
    """Return whether a block with the name `sent` is a call of the gate that a provider knows as `name`."""
    return isinstance(sent, str) and name in (sent, fit_name(sent, rules))


def fit_tools(tools: Sequence[ToolDefinition], rules: HistoryRules) -> Sequence[ToolDefinition]:
    """Return the definitions under the names that a provider accepts: the same sequence if it accepts all."""
    if all(fit_name(tool.name, rules) == tool.name for tool in tools):
        return tools
    return [replace(tool, name=fit_name(tool.name, rules)) for tool in tools]


def fit_choice(choice: str | None, rules: HistoryRules) -> str | None:
    """Return a tool choice; a gate that it names has the name that the provider knows."""
    gate = find_named_gate(choice)
    return choice if gate is None else f"gate:{fit_name(gate, rules)}"


def fit_id(call_id: str, rules: HistoryRules) -> str:
    """Return the id of a call as a provider accepts it."""
    if rules.ids.fullmatch(call_id):
        return call_id
    made = f"call_{hashlib.blake2b(call_id.encode(), digest_size=9).hexdigest()}"
    return made if rules.ids.fullmatch(made) else hashlib.blake2b(call_id.encode(), digest_size=5).hexdigest()[:9]


def fit_utterance(message: Message, rules: HistoryRules) -> Message:
    """Return an utterance whose calls have names and arguments that a provider accepts."""
    calls = tuple([fit_call(call, rules) for call in message.tool_calls])
    if all(map(is_, calls, message.tool_calls)):
        return message
    return replace(message, tool_calls=calls)


def fit_call(call: ToolCall, rules: HistoryRules) -> ToolCall:
    """Return a call with a name and arguments that a provider accepts: the same call if it accepts both."""
    name, args = fit_name(call.gate, rules), call.args
    if args is not None and _is_deep(args.values(), rules.depth):
        args = {key: _flatten(value, rules.depth) for key, value in args.items()}
    if name == call.gate and args is call.args:
        return call
    return replace(call, gate=name, args=args)


def fit_block(block: Mapping[str, Any], kind: str, rules: HistoryRules) -> dict[str, Any] | None:
    """Return a block of the provider as it goes back; None if it has to be left out. `kind` is its type."""
    needed = rules.needs.get(kind)
    if needed is not None and not _has_words(block.get(needed)):
        return None
    stripped = rules.strips.get(kind)
    return {name: value for name, value in block.items() if stripped is None or name not in stripped}


def fit_citations(citations: Iterable[Mapping[str, Any]], rules: HistoryRules) -> list[dict[str, Any]]:
    """Return the citations of a text as they go back."""
    stripped = rules.strips.get("citations", frozenset())
    return [{name: value for name, value in citation.items() if name not in stripped} for citation in citations]


def _has_words(value: object) -> bool:
    return bool(value.strip()) if isinstance(value, str) else value is not None


def _is_deep(values: Iterable[Any], depth: int) -> bool:
    """Return whether a value has objects or lists below `depth` levels of them."""
    level: list[Any] = [value for value in values if isinstance(value, (dict, list, tuple))]
    for _ in range(depth - 1):
        if not level:
            return False
        parts = (part for value in level for part in (value.values() if isinstance(value, dict) else value))
        level = [part for part in parts if isinstance(part, (dict, list, tuple))]
    return bool(level)


def _flatten(value: Any, depth: int) -> Any:
    """Return a value with at most `depth` levels, its own among them; deeper parts are JSON texts."""
    if not isinstance(value, (dict, list, tuple)):
        return value
    if depth <= 1:
        return as_text(value)
    if isinstance(value, dict):
        return {key: _flatten(part, depth - 1) for key, part in value.items()}
    return [_flatten(part, depth - 1) for part in value]
