"""A turn as users see it, as returned by `loom.turns(...)` and `episode.thread`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cantrip_actors.records.records import Decided, Observation, Resumed
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image, select_files, select_pictures
from cantrip_actors.terms.messages import ToolCall, Usage
from cantrip_actors.terms.server_tools import Citation, ServerCall


@dataclass(frozen=True, slots=True)
class TurnMetadata:
    """Tokens, wall clock and time of a turn (LOOM-9). A continuation has no tokens: its utterance was paid for."""

    tokens_prompt: int
    tokens_completion: int
    tokens_cached: int
    duration_ms: float
    timestamp: str
    cost: float = 0.0
    tokens_cache_written: int = 0
    """The part of `tokens_prompt` that the provider wrote to its cache."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn as users see it (SPEC 6.1): what the entity said and what the circle answered.

    `gate_calls` are the observations in order; `observation` is their text. `content`, `tool_calls`, `thinking` and
    `code` are the parts of the utterance, `utterance` its text. `sequence` counts an entity's turns from 1.

    `made` are the images that the utterance has; `images` has those of the gates, too.

    `decisions` are people's decisions about its calls and their answers, each with the person, the door, the time and
    the note.

    `resumes` are the resumptions of the entity since the turn before, each after a crash, with the person and the time.

    `server_calls` are the calls of tools of the provider, and `citations` the sources that the text cites.

    `left_out` names the settings of the call that were not sent to the crystal. `adjusted` has, by name, the settings
    that were sent with another value: `{"asked": …, "sent": …}`.

    `gate_durations` are the milliseconds that each of its gate calls took.

    A turn that is `undone` is no longer in the entity's context: its intent was undone.

    The content of a turn that is `forgotten` is gone: texts are empty, ids and token counts are as they were.
    """

    id: str
    parent_id: str | None
    cantrip_id: str
    entity_id: str
    sequence: int
    utterance: str
    observation: str
    gate_calls: tuple[Observation, ...]
    metadata: TurnMetadata
    reward: float | None = None
    terminated: bool = False
    truncated: bool = False
    utterance_id: str = ""
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    thinking: str | None = None
    code: str | None = None
    blocks: tuple[Mapping[str, Any], ...] = ()
    children: tuple[str, ...] = ()
    ward: str | None = None
    forgotten: bool = False
    undone: bool = False
    decisions: tuple[Decided, ...] = ()
    server_calls: tuple[ServerCall, ...] = ()
    citations: tuple[Citation, ...] = ()
    made: tuple[Image, ...] = ()
    left_out: tuple[str, ...] = ()
    adjusted: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    resumes: tuple[Resumed, ...] = ()
    gate_durations: tuple[float, ...] = ()

    @property
    def observations(self) -> tuple[Observation, ...]:
        """The same as `gate_calls`, by the name of D-005."""
        return self.gate_calls

    @property
    def images(self) -> tuple[Image, ...]:
        """The images that the entity and its gates made."""
        return (*self.made, *select_pictures(image for seen in self.gate_calls for image in seen.images))

    @property
    def files(self) -> tuple[File, ...]:
        """The files other than images that its gates returned."""
        return select_files(image for seen in self.gate_calls for image in seen.images)

    @property
    def usage(self) -> Usage:
        """The tokens of this turn's utterance."""
        m = self.metadata
        return Usage(m.tokens_prompt, m.tokens_completion, m.tokens_cached, m.cost)

    @property
    def continues(self) -> bool:
        """Whether this turn continues the utterance of an earlier one (LOOM-8)."""
        return self.utterance_id != self.id
