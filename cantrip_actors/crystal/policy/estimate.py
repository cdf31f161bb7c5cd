"""Estimate the tokens of a query: before it, to reserve them, and after it, for a crystal that reports none.

There is no tokenizer here: each model has its own. The estimate counts characters, each once (a context only grows, so
its count is kept), and learns the tokens per character from the answers of this crystal. It also learns how long the
answers are, unless the call limits them (`max_tokens`).

Images count by their family's formula (`Family.image_tokens`), or by their pixels for a crystal without one. How far
that is off for this model is learnt from the answers to contexts with images, which teach nothing about characters.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from math import ceil
from typing import Any, Final
from weakref import WeakKeyDictionary

from cantrip_actors.crystal.images import estimate_by_pixels, estimate_file_tokens
from cantrip_actors.terms.context import View
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import Invocation, Message, Response, ToolDefinition, Usage, as_text

_A_CHARACTER: Final = 0.3
"""Tokens per character before anything was learnt: on the safe side for prose, right for code."""
_AN_ANSWER: Final = 500.0
_LEARNT: Final = 0.2
"""The weight of the newest answer in the learnt averages."""
_KEPT: Final = 512


_estimators: WeakKeyDictionary[object, Estimator] = WeakKeyDictionary()
"""The estimators of crystals that have none of their own."""


def find_estimator(crystal: object) -> Estimator:
    """Return the estimator of a crystal, which counts each message of a growing context once.

    The crystal may say how many tokens an image takes (`image_tokens`).
    """
    own = getattr(crystal, "estimator", None)
    if isinstance(own, Estimator):
        return own
    with suppress(TypeError):  # it cannot be referred to weakly, or has no hash
        if crystal in _estimators:
            return _estimators[crystal]
    image_tokens = getattr(crystal, "image_tokens", None)
    estimator = Estimator(image_tokens) if callable(image_tokens) else Estimator()
    with suppress(TypeError):
        _estimators[crystal] = estimator
    return estimator


class Estimator:
    """Estimates for the queries of one crystal."""

    def __init__(self, image_tokens: Callable[[File], int] = estimate_by_pixels) -> None:
        self.per_character = _A_CHARACTER
        self.answer = _AN_ANSWER
        self.images = 1.0
        """The ratio of the tokens that images took to the tokens that the formula gives."""
        self._image_tokens = image_tokens
        self._counted: OrderedDict[tuple[Any, ...], tuple[Any, int, int, int]] = OrderedDict()
        self._tools: OrderedDict[int, tuple[Sequence[ToolDefinition], int]] = OrderedDict()

    def estimate_tokens(self, invocation: Invocation, options: Mapping[str, Any]) -> float:
        """Return the tokens that a query will probably use, prompt and completion together."""
        most = options.get("max_tokens")
        answer = self.answer if not isinstance(most, int) else min(self.answer, most)
        return self._estimate_prompt(invocation) + answer

    def estimate_usage(self, invocation: Invocation, response: Response | None = None) -> Usage:
        """Return the estimated usage of a query whose crystal reports none; without a response, of its prompt."""
        prompt = ceil(self._estimate_prompt(invocation))
        answer = 0 if response is None else ceil(_measure_answer(response) * self.per_character)
        return Usage(prompt, answer, estimated_tokens=prompt + answer)

    def learn(self, invocation: Invocation, usage: Usage) -> None:
        """Learn from the reported usage of a query."""
        characters, images = self._count(invocation)
        if images and usage.prompt_tokens:
            off = (usage.prompt_tokens - characters * self.per_character) / images
            self.images += _LEARNT * (min(5.0, max(0.05, off)) - self.images)
        elif characters and usage.prompt_tokens:
            seen = min(2.0, max(0.02, usage.prompt_tokens / characters))
            self.per_character += _LEARNT * (seen - self.per_character)
        if usage.completion_tokens:
            self.answer += _LEARNT * (usage.completion_tokens - self.answer)

    def _estimate_prompt(self, invocation: Invocation) -> float:
        characters, images = self._count(invocation)
        return characters * self.per_character + images * self.images

    def _count(self, invocation: Invocation) -> tuple[int, int]:
        """Return the characters of the context and the tools, and the tokens of the images."""
        characters, images = self._count_messages(invocation.messages)
        return characters + self._count_definitions(invocation.tools), images

    def _count_messages(self, messages: Sequence[Message]) -> tuple[int, int]:
        if not isinstance(messages, View):
            return sum(map(_count_characters, messages)), sum(map(self._count_image_tokens, messages))
        # the underlying list is kept with its count, so that no other list gets its address in memory
        prefix = messages.prefix
        key = (id(prefix[0]), prefix[1])
        counted = self._counted.pop(key, None)
        fits = counted is not None and counted[0] == prefix and counted[1] <= len(messages)
        length, count, images = counted[1:] if counted is not None and fits else (0, 0, 0)
        for at in range(length, len(messages)):
            message = messages[at]
            count += _count_characters(message)
            if message.images:
                images += self._count_image_tokens(message)
        self._counted[key] = (prefix, len(messages), count, images)
        if len(self._counted) > _KEPT:
            self._counted.popitem(last=False)
        return count, images

    def _count_image_tokens(self, message: Message) -> int:
        images = message.images
        return sum(
            self._image_tokens(image) if isinstance(image, Image) else estimate_file_tokens(image) for image in images
        )

    def _count_definitions(self, tools: Sequence[ToolDefinition]) -> int:
        counted = self._tools.get(id(tools))
        if counted is None:
            count = sum(len(tool.name) + len(tool.description) + len(as_text(tool.parameters)) for tool in tools)
            counted = self._tools[id(tools)] = (tools, count)
            if len(self._tools) > _KEPT:
                self._tools.popitem(last=False)
        return counted[1]


def _count_characters(message: Message) -> int:
    return len(message.content or "") + sum(len(call.gate) + len(call.arguments) for call in message.tool_calls)


def _measure_answer(response: Response) -> int:
    """Return the characters of an answer, at least one: an estimate must not be zero."""
    texts = (response.content, response.thinking, response.code)
    calls = sum(len(call.gate) + len(call.arguments) for call in response.tool_calls)
    return max(1, calls + sum(len(text) for text in texts if text))
