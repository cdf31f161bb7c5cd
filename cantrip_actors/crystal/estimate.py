"""How many tokens a query will take: the guess that is reserved before, since only the answer tells.

No tokenizer is here: each model has its own. What is counted is characters, once each (a context only grows, and what
was counted of it is kept), and what a character amounts to is learnt from the answers of this very crystal. So is how
long its answers are, unless the call limits them (`max_tokens`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from cantrip_actors.crystal.contract import Query
from cantrip_actors.model.context import View
from cantrip_actors.model.messages import Message, ToolDefinition, Usage, as_text

__all__ = ["Estimator"]

_A_CHARACTER: Final = 0.3
"""Tokens a character, until something is known: on the safe side for prose, right for code."""
_AN_ANSWER: Final = 500.0
_LEARNT: Final = 0.2
"""The share of the newest answer in what is learnt."""
_KEPT: Final = 512


class Estimator:
    """What one crystal's queries take."""

    def __init__(self) -> None:
        self.per_character = _A_CHARACTER
        self.answer = _AN_ANSWER
        self._counted: OrderedDict[tuple[Any, ...], tuple[Any, int, int]] = OrderedDict()
        self._tools: OrderedDict[int, tuple[Sequence[ToolDefinition], int]] = OrderedDict()

    def tokens(self, query: Query) -> float:
        """The estimate, prompt and completion together."""
        most = query.options.get("max_tokens")
        answer = self.answer if not isinstance(most, int) else min(self.answer, most)
        return self.characters(query) * self.per_character + answer

    def learn(self, query: Query, usage: Usage) -> None:
        """What it really took."""
        characters = self.characters(query)
        if characters and usage.prompt_tokens:
            seen = min(2.0, max(0.02, usage.prompt_tokens / characters))
            self.per_character += _LEARNT * (seen - self.per_character)
        if usage.completion_tokens:
            self.answer += _LEARNT * (usage.completion_tokens - self.answer)

    def characters(self, query: Query) -> int:
        """Of the context and the tools."""
        return self._messages(query.invocation.messages) + self._definitions(query.invocation.tools)

    def _messages(self, messages: Sequence[Message]) -> int:
        if not isinstance(messages, View):
            return sum(map(_characters, messages))
        # the list beneath is held along with what was counted, so that no other one gets its place in memory
        prefix = messages.prefix
        key = (id(prefix[0]), *prefix[1:3], prefix[4])
        known = self._counted.pop(key, None)
        length, count = (0, 0) if known is None or known[0] != prefix or known[1] > len(messages) else known[1:]
        count += sum(_characters(messages[at]) for at in range(length, len(messages)))
        self._counted[key] = (prefix, len(messages), count)
        if len(self._counted) > _KEPT:
            self._counted.popitem(last=False)
        return count

    def _definitions(self, tools: Sequence[ToolDefinition]) -> int:
        known = self._tools.get(id(tools))
        if known is None:
            count = sum(len(tool.name) + len(tool.description) + len(as_text(tool.parameters)) for tool in tools)
            known = self._tools[id(tools)] = (tools, count)
            if len(self._tools) > _KEPT:
                self._tools.popitem(last=False)
        return known[1]


def _characters(message: Message) -> int:
    return len(message.content or "") + sum(len(call.gate) + len(call.arguments) for call in message.tool_calls)
