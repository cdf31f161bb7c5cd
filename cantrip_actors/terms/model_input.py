"""The input of a crystal for one answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cantrip_actors.terms.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """The input of the call of a model that a turn answers.

    `messages` are those of the query: the system prompt, intents, answers, results and images, as far as they were in
    sight. `tools` are the gates that it offered, and `settings` those of the call, without the system prompt.
    `folded_turns` are the ids of the turns that a fold had replaced by its marker; each can be read as a turn.

    It is computed from the loom. `is_exact` is False if the process does not know the cantrip in force at that turn:
    then texts that no record has may be missing or whole, such as a medium's description of its functions and the bound
    on long results. A query that a provider had refused as too long was then sent in a shorter form.
    """

    turn_id: str
    entity_id: str
    crystal: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    settings: Mapping[str, Any]
    folded_turns: tuple[str, ...]
    is_exact: bool
