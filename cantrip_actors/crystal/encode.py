"""Encodes a context for a provider, at the cost of its new part.

A context only grows, so its encoding for the last query is the beginning of the next one. An `Encoder` keeps that
beginning as bytes, by `View.prefix`, and appends to it; turn *n* pays for turn *n*. The bytes of all contexts are
bounded: the least recently used are dropped. A new context, or one that has changed (a fold, a fork, a faded result),
is encoded whole.

This file keeps the promises of the contract to every provider, whatever the context holds:

- every call is answered, right after the utterance that made it, in the order of the calls; a call without a result
  gets a result that says so, and a result without its call becomes plain text;
- no two calls of a context have the same id; ids, names and arguments of calls are such that the provider takes them
  (`history.py`);
- the results and texts between two utterances are one run: results first, then texts;
- an image or another file is sent at its place in the text, or a line of text says why it is missing (`images.py`);
- an image that the model made is sent in the model's own blocks, or right after its utterance.

The `Writer` of a family makes the fragments of utterances and runs, each the JSON of one element of the request's list
of messages. The newest run is never kept, because it may have a cache mark, and because results may still be missing
from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from cantrip_actors.crystal.draft import KEPT
from cantrip_actors.crystal.history import HISTORIES, HistoryRules, fit_id, fit_name, fit_utterance
from cantrip_actors.crystal.images import Shown, Takes, list_parts
from cantrip_actors.terms.call import TYPED
from cantrip_actors.terms.context import View
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import NO_IMAGES, Image
from cantrip_actors.terms.messages import Message, ToolCall, ToolDefinition
from cantrip_actors.terms.server_tools import ServerTool, parse_server_tools

UNANSWERED: Final = "[no result: this call was interrupted]"
GO_ON: Final = "[go on]"
"""The text sent to a provider that should answer when the context has nothing new for it."""
_MARK: Final = len(KEPT) + 64
MADE: Final = "[what you have made]"
"""The text sent before the images of the last answer, for providers whose answers cannot hold images."""

BUDGET: Final = 64 * 1024 * 1024
"""Bytes of encoded contexts that one crystal keeps."""

RUNS: Final = 4
"""How many runs may be marked for a cache."""

LOOK_BACK: Final = 18
"""Blocks after which a provider may not find the mark of the last query: it looks back over 20."""

CONTEXTS: Final = 1024
"""How many contexts it keeps, because small ones take more memory than their bytes."""


class CallAnswer(NamedTuple):
    """The answer to a call: that at index `at` of the `utterance`. `id` is the call's id at the provider."""

    utterance: Message
    at: int
    id: str
    content: str
    is_error: bool
    images: tuple[File, ...] = NO_IMAGES

    @property
    def call(self) -> ToolCall:
        """The call."""
        return self.utterance.tool_calls[self.at]

    @property
    def text(self) -> str:
        """Its content, for providers without a field for failures."""
        return f"[error] {self.content}" if self.is_error else self.content


class Writer(ABC):
    """Writes utterances and runs for a family. Pure; blocks of `model` are sent back to it."""

    marks: int | None = 0
    """How many of the newest runs get a cache mark (`mark`). None: 1, or 2 after a turn so long that the provider would
    not find the mark of the last query."""

    def __init__(self, model: str, provider: str, takes: Takes) -> None:
        self.model = model
        self.provider = provider
        self.takes = takes
        """The images and files that the provider accepts."""
        self.rules: HistoryRules = HISTORIES[provider]
        """What the provider accepts in utterances."""
        self.replays = True
        """Whether the provider's own blocks are sent back; False for a context whose blocks it refused."""

    @abstractmethod
    def write_utterance(self, message: Message, ids: Sequence[str]) -> Iterable[bytes]:
        """Yield an utterance. `ids` are those of its calls, in order."""

    def can_show_images(self, message: Message, ids: Sequence[str]) -> bool:  # noqa: ARG002
        """Return whether `write_utterance` sends the images of an utterance; otherwise they are sent right after it."""
        return False

    @abstractmethod
    def write_messages(self, answers: Sequence[CallAnswer], texts: Sequence[str | Shown]) -> Iterable[bytes]:
        """Yield the messages between two utterances."""

    def mark(self, fragment: bytes) -> bytes:
        """Return the last fragment of a run, marked for the provider's cache."""
        return fragment

    def list_parts(self, text: str | Shown) -> list[str | File]:
        """Return a text with its images as they are sent: in order; a single text if there are no images."""
        return [text] if isinstance(text, str) else list_parts(text.text, text.images, self.takes)

    def list_result_parts(self, answer: CallAnswer, text: str) -> list[str | File]:
        """Return the parts of a result, whose text is `text`."""
        return list_parts(text, answer.images, self.takes) if answer.images else [text]

    def blind(self) -> None:
        """Send no more images."""
        self.takes = replace(self.takes, any=False)

    def refuse(self, keys: frozenset[str]) -> None:
        """Send a line of text for the images and files with these keys, and for no others that were refused."""
        self.takes = replace(self.takes, refused=keys)

    def take_files(self, kinds: Sequence[str]) -> None:
        """Send files of these media types, and no others."""
        self.takes = replace(self.takes, files=tuple(kinds))

    def find_own_content(self, message: Message) -> Any:
        """Return the content of the message's block by this provider and this model, None if it has none."""
        if self.replays:
            for block in message.blocks:
                if block.get("provider") == self.provider and block.get("model") == self.model:
                    content = block.get("content")
                    return restore_bytes(content, message.images) if message.images else content
        return None


class Encoded(NamedTuple):
    """An encoded context. `utterance` is the number of the answer, from 1.

    `parts` are the elements of its list of messages, with commas between those of one part. Join them at once, since
    the first part keeps growing. That one copy is the whole cost of an old context.
    """

    system: str
    parts: tuple[bytes | bytearray, ...]
    utterance: int
    withheld: bool = False
    """Whether the messages have other files that the provider does not accept."""
    files: Mapping[str, File] = {}
    """The images and files in the messages, by their keys (`File.identity`)."""


@dataclass(slots=True, eq=False)
class _Transcript:
    """The encoded beginning of one context: `count` messages, of which the open run is not encoded yet."""

    prefix: Any
    count: int = 0
    system: list[str] = field(default_factory=list)
    done: bytearray = field(default_factory=bytearray)
    run: list[Message] = field(default_factory=list)
    utterance: Message | None = None
    ids: list[str] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)
    """The ids of the calls so far, and how many calls asked for each."""
    open: bool = True  # system messages may still come
    withheld: bool = False
    files: dict[str, File] = field(default_factory=dict)
    runs: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=RUNS))
    """The indexes in `done` of the last fragments of the newest runs."""

    def take(self, messages: Iterable[Message], writer: Writer) -> None:
        for message in messages:
            self.count += 1
            if message.role == "assistant":
                self.open = False
                heard = self.utterance is not None or self.run
                place = self._add(self.write_open_run(writer, last=False)) if heard else None
                if place is not None:
                    self.runs.append(place)
                if message.tool_calls:
                    message = fit_utterance(message, writer.rules)
                self.utterance, self.run = message, []
                self.ids = [self._make_id(call.id, writer.rules) for call in message.tool_calls]
                self._add(writer.write_utterance(message, self.ids))
                if message.images and not writer.can_show_images(message, self.ids):
                    self._hear(Message("user", MADE, images=message.images), writer)
            elif message.role == "system" and self.open:
                if message.content:
                    self.system.append(message.content)
            else:
                self.open = False
                self._hear(message, writer)

    def _hear(self, message: Message, writer: Writer) -> None:
        self.run.append(message)
        for image in message.images:
            self.files[image.identity] = image
            if not isinstance(image, Image) and writer.takes.why_not(image) is not None:
                self.withheld = True

    def write_open_run(self, writer: Writer, *, last: bool, extra: str = "") -> Iterable[bytes]:
        """The open run, its results sorted to their calls."""
        utterance, left = self.utterance, list(self.run)
        texts: list[str | Shown] = []
        answers = []
        for index, call in enumerate(() if utterance is None else utterance.tool_calls):
            assert utterance is not None, "a call was said"
            position = next((n for n, m in enumerate(left) if m.role == "tool" and m.tool_call_id == call.id), None)
            if position is None:
                position = next(
                    (
                        n
                        for n, m in enumerate(left)
                        if m.role == "tool" and not m.tool_call_id and fit_name(m.gate or "", writer.rules) == call.gate
                    ),
                    None,
                )
            if position is None:
                answers.append(CallAnswer(utterance, index, self.ids[index], UNANSWERED, is_error=True))
            else:
                result = left.pop(position)
                content, failed = result.content or "", result.is_error
                answers.append(CallAnswer(utterance, index, self.ids[index], content, failed, result.images))
        for message in left:
            text = message.content or ""
            if message.role == "tool":
                text = f"[result of {message.gate or 'a gate'}]\n{text}"
            elif message.role == "system":  # of a history: providers take such messages at the front only
                text = f"[system message]\n{text}"
            if message.images:
                texts.append(Shown(text, message.images))
            elif text.strip():
                texts.append(text)
        if extra:
            texts.append(extra)
        if last and not (answers or texts):
            texts.append(GO_ON)
        return writer.write_messages(answers, texts) if answers or texts else ()

    def _make_id(self, call_id: str, rules: HistoryRules) -> str:
        own = wanted = fit_id(call_id, rules)
        n = self.used.get(wanted, 0) + 1
        while own in self.used:
            own = fit_id(f"{wanted[:56]}_{n}", rules)
            n += own in self.used
        self.used[wanted] = n
        self.used.setdefault(own, 1)
        return own

    def _add(self, fragments: Iterable[bytes]) -> tuple[int, int] | None:
        """Add fragments; return the index of the last one."""
        place = None
        for fragment in fragments:
            if self.done:
                self.done += b","
            place = (len(self.done), len(self.done) + len(fragment))
            self.done += fragment
        return place

    def mark_fragments(self, writer: Writer, *, older: int) -> list[bytes | bytearray]:
        """Return the encoded fragments, with the newest `older` runs marked."""
        fragments: list[bytes | bytearray] = []
        begin = 0
        for start, end in list(self.runs)[-older:] if older > 0 else ():
            fragments += [self.done[begin : max(begin, start - 1)], writer.mark(bytes(self.done[start:end]))]
            begin = end + 1
        return [*fragments, self.done[begin:] if begin else self.done]


class Encoder:
    """Encodes contexts for one crystal, and keeps the encoded beginnings."""

    def __init__(self, writer: Writer, budget: int = BUDGET) -> None:
        self.writer = writer
        self._budget = budget
        self._kept: OrderedDict[int, _Transcript] = OrderedDict()
        self._size = 0
        self._tools: tuple[Sequence[ToolDefinition], Any] | None = None

    def encode(
        self,
        messages: Sequence[Message],
        *,
        extra: str = "",
        bare: bool = False,
        resumes: bool = False,
        withheld: frozenset[str] = frozenset(),
    ) -> Encoded:
        """Return the encoded context.

        `extra` is one more text for the provider, which is not kept. With `bare`, the context so far is sent without
        the provider's own blocks, now and in later queries. With `resumes`, the last utterance is incomplete.
        `withheld` are the keys of images and files that are left out as well as those that the writer leaves out.
        """
        transcript = self._find(messages, anew=bare or bool(withheld))
        before = len(transcript.done)
        refused = self.writer.takes.refused
        if withheld:
            self.writer.refuse(refused | withheld)
        self.writer.replays = not bare
        transcript.take(messages[transcript.count :], self.writer)
        self.writer.replays = True
        self._keep(transcript, before)
        marks = self.writer.marks
        if marks is None:
            marks = 2 if len(transcript.ids) + len(transcript.run) >= LOOK_BACK else 1
        older = marks if resumes else marks - 1
        newest = [] if resumes else list(transcript.write_open_run(self.writer, last=True, extra=extra))
        if newest and marks:
            newest[-1] = self.writer.mark(newest[-1])
        if withheld:
            self.writer.refuse(refused)
        fragments = [*transcript.mark_fragments(self.writer, older=older), b",".join(newest)]
        parts = tuple(fragment for fragment in fragments if fragment)
        if isinstance(messages, View):
            utterance = messages.query + 1
        else:
            utterance = 1 + sum(message.role == "assistant" for message in messages)
        return Encoded("\n\n".join(transcript.system), parts, utterance, transcript.withheld, transcript.files)

    def forget(self) -> None:
        """Forget all encoded contexts, because the writer has changed."""
        self._kept.clear()
        self._size = 0

    def encode_tools(self, tools: Sequence[ToolDefinition], make: Any) -> Any:
        """Return `make(tools)`; the same tools as last time cost nothing."""
        if self._tools is None or self._tools[0] is not tools:
            self._tools = (tools, make(tools))
        return self._tools[1]

    def _find(self, messages: Sequence[Message], *, anew: bool) -> _Transcript:
        if not isinstance(messages, View):
            return _Transcript(None)
        prefix = messages.prefix
        if anew:
            return _Transcript(prefix)
        transcript = self._kept.get(id(prefix[0]))  # the prefix keeps the list alive, so no other list gets its id
        if transcript is not None and transcript.prefix == prefix and transcript.count <= len(messages):
            return transcript
        return _Transcript(prefix)

    def _keep(self, transcript: _Transcript, before: int) -> None:
        if transcript.prefix is None:
            return
        key = id(transcript.prefix[0])
        old = self._kept.get(key)
        if old is transcript:
            self._size += len(transcript.done) - before
        else:
            self._size += len(transcript.done) - (len(old.done) if old is not None else 0)
            self._kept[key] = transcript
        self._kept.move_to_end(key)
        while self._kept and (self._size > self._budget or len(self._kept) > CONTEXTS):
            _, oldest = self._kept.popitem(last=False)
            self._size -= len(oldest.done)


class SamplingSettings(NamedTuple):
    """The sampling parameters of a call: those of all families, and `more`, which is passed on unchanged."""

    temperature: float | None
    top_p: float | None
    max_tokens: int | None
    stop: tuple[str, ...]
    effort: str | None
    """The level of thinking: "none", "minimal", "low", "medium", "high", or another one of the provider."""
    schema: Mapping[str, Any] | None
    """The JSON Schema that a text answer has to follow."""
    more: Mapping[str, Any]
    typed: Mapping[str, Any] = {}
    """The settings that two families share, by name (`typed_settings.py`)."""
    server_tools: tuple[ServerTool, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SamplingSettings:
        """Return the settings in `Call.sampling`: the fields of the call, `effort`, `output_schema`, and options of the
        provider.
        """
        more = dict(options)
        stop = more.pop("stop", None) or ()
        return cls(
            temperature=more.pop("temperature", None),
            top_p=more.pop("top_p", None),
            max_tokens=more.pop("max_tokens", None),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            effort=more.pop("effort", None),
            schema=more.pop("output_schema", None),
            typed={name: value for name in TYPED if (value := more.pop(name, None)) is not None},
            server_tools=parse_server_tools(more.pop("server_tools", None) or ()),
            more=more,
        )


def restore_bytes(content: Any, images: Sequence[File]) -> Any:
    """Return a block with the bytes of its images in their places, in base64; None where one of them is lost."""
    by_mark = {f"{KEPT}{image.digest}": image for image in images if image.digest}
    lost = False

    def visit(value: Any) -> Any:
        nonlocal lost
        if isinstance(value, str):
            image = by_mark.get(value[-_MARK:])
            address = value[:-_MARK]
            if image is None or not (not address or address.endswith(";base64,")):
                return value
            data = image.base64()
            lost = lost or data is None
            return f"{address}{data}"
        if isinstance(value, Mapping):
            return {name: visit(part) for name, part in value.items()}
        return [visit(part) for part in value] if isinstance(value, (list, tuple)) else value

    restored = visit(content)
    return None if lost else restored


def merge(body: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body with the additions of a user; objects are merged, everything else is replaced."""
    for name, value in more.items():
        mine = body.get(name)
        body[name] = merge(dict(mine), value) if isinstance(mine, dict) and isinstance(value, Mapping) else value
    return body
