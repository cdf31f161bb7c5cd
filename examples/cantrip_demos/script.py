"""Scripts in the place of a language model, for demos: a pure function of the messages answers at a readable pace."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio

from cantrip_actors import Crystal, Invocation, scripted

__all__ = ["scripted_demo", "size_of"]


def scripted_demo(
    policy: Callable[[Invocation], dict[str, Any]],
    pace: float,
    *,
    name: str = "scripted:demo",
    watch: Callable[[Invocation], object] = lambda _: None,
) -> Crystal:
    """Return a crystal that answers with what `policy` returns, after `pace` seconds; `watch` sees each prompt.

    Tokens are counted as a model would be billed for them, roughly: four characters each.
    """

    async def answer(context: Invocation) -> dict[str, Any]:
        watch(context)
        await anyio.sleep(pace)
        response = policy(context)
        usage = {"prompt_tokens": size_of(context) // 4, "completion_tokens": len(json.dumps(response)) // 4}
        return {**response, "usage": usage}

    return scripted(answer, name=name, record=False)


def size_of(context: Invocation) -> int:
    """Return the characters of a prompt."""
    return sum(len(message.content or "") for message in context)
