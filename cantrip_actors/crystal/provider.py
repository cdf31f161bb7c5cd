"""A provider's model as a crystal: a family's encoder and decoder around one query (CRYSTAL-1 … CRYSTAL-6).

A `Family` describes a provider's interface: how to write a request, which decoder reads the answer, what the model
refuses. Each family's module has the writer, the decoder and the `Family` that names both; this file has shared code.

`ProviderCrystal.invoke` is one attempt. It sends one request, or as many as the provider needs for one answer:

- if a model refuses a parameter (for sampling, a forced call, a schema), the crystal leaves it out or adjusts it, asks
  again, and remembers it for an hour (`lessons.py`); each response tells which parameters were changed for it
  (`metadata["left_out"]`, `metadata["adjusted"]`);
- a turn that the provider interrupts (Anthropic's `pause_turn`, Gemini's `CONTINUATION`) is continued until it is
  complete;
- if a call is required and cannot be forced, the crystal asks for an answer by a schema instead (CRYSTAL-5,
  `simulated.py`).

`query.py` retries, and asks again in words if there is no schema either.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, ClassVar, Final, NamedTuple, Self, Unpack

import anyio

from cantrip_actors.crystal.access import Access
from cantrip_actors.crystal.answer_bytes import LARGEST_ANSWER
from cantrip_actors.crystal.answer_contract import NotAsAsked
from cantrip_actors.crystal.client import Client, ConnectionSettings, EnvironmentKey, ProviderRequest
from cantrip_actors.crystal.draft import NO_COUNTS, Counts, Decoder, tokens
from cantrip_actors.crystal.encode import Encoded, Encoder, SamplingSettings, Writer
from cantrip_actors.crystal.history import fit_choice, fit_tools
from cantrip_actors.crystal.images import Takes, estimate_by_pixels, is_image_refusal
from cantrip_actors.crystal.lessons import LEVELS, Adjusted, Lessons, is_absent, is_mistake
from cantrip_actors.crystal.policy.breaker import Breaker
from cantrip_actors.crystal.policy.estimate import Estimator
from cantrip_actors.crystal.policy.limits import Limits
from cantrip_actors.crystal.prices import UNKNOWN, Model, Prices
from cantrip_actors.crystal.query import AnsweringCrystal, Query
from cantrip_actors.crystal.refused_content import find_refused_content
from cantrip_actors.crystal.schemas import Fitted, describe_schema, drop_nulls, fit_answer, keep_schema
from cantrip_actors.crystal.server_tools import FEES, NOTHING, TRANSLATIONS, Translated, add_fields
from cantrip_actors.crystal.shapes import parse_object
from cantrip_actors.crystal.simulated import PlainWriter, extract_call, make_schema, write_instructions
from cantrip_actors.crystal.sse import ServerSentEvent
from cantrip_actors.crystal.stand_ins import check_query
from cantrip_actors.crystal.typed_settings import PATTERNS, Table
from cantrip_actors.redact.urls import render_url
from cantrip_actors.stream.wire import ItemError, ItemStart, Payload, StreamError
from cantrip_actors.terms.call import TYPED
from cantrip_actors.terms.cut_off import find_cut_off
from cantrip_actors.terms.errors import CrystalError, InvalidCantrip, ProviderError
from cantrip_actors.terms.exact_json import dump_exactly
from cantrip_actors.terms.file import File
from cantrip_actors.terms.image import Image
from cantrip_actors.terms.messages import (
    NO_USAGE,
    Invocation,
    Message,
    Response,
    ToolChoice,
    ToolDefinition,
    Usage,
    find_named_gate,
)
from cantrip_actors.terms.messages import must_call as has_to_call
from cantrip_actors.terms.server_tools import ServerTool, check_server_tools

REMEMBERED: Final = 10_000
"""How many images and files a crystal remembers as refused, and how many as accepted."""

LESSONS: Final = 6
"""How many refusals in a row one query learns from."""

SCHEMAS: Final = 64
"""How many schemas of answers, fitted to its family, a crystal keeps."""

IMAGES: Final = "images"
"""The name in `left_out` if a server accepts no images."""

STRICT: Final = "strict"
"""The parameter by which a provider holds its model to the schema of a tool."""
STRICT_REFUSED: Final = r"\bstrict\b|structured output|invalid schema for function|input_schema|too complex"
"""The words of refusals of it."""

FILES: Final = "files"
"""The name in `left_out` if a context has files that the model does not accept."""

VALUES: Final = frozenset({"temperature", "top_p", "stop", *TYPED})
"""The parameters of which a model may refuse one value and accept another."""

MISFIT: Final = "simplify output_schema, raise max_tokens, or use a crystal that can be made to follow a schema"

OUR_OWN: Final = frozenset({"", "include", "stream_options"})
"""Parameters that no caller sets: only the response to the refused query reports them as left out."""

UNSEEN: Final = frozenset({"blocks", "null", *OUR_OWN})
"""Lessons that no response lists as left out."""

PAUSES: Final = 16
"""How often an interrupted turn is continued."""

_ABOUT_BLOCKS: Final = re.compile(r"thinking|signature|reasoning|encrypted|thought", re.IGNORECASE)

Emit = Callable[[Payload], None]
Carry = Callable[[ProviderRequest, Decoder, Emit | None], Awaitable[Response]]
"""A function that sends a request to the provider and passes its answer to a decoder."""


class _Prepared(Exception):  # no error: it ends a query before it is sent
    def __init__(self, request: ProviderRequest) -> None:
        self.request = request


class AskAgain(ProviderError):
    """The provider refused a request; `request` is the one to send instead."""

    def __init__(self, request: ProviderRequest, why: str, usage: Usage = NO_USAGE) -> None:
        super().__init__(why, usage=usage)
        self.request = request


class ProviderQuery(NamedTuple):
    """One query, with everything that a family needs to write it."""

    messages: Sequence[Message]
    tools: Sequence[ToolDefinition]
    choice: ToolChoice | None
    settings: SamplingSettings
    bare: bool = False
    """Whether to leave out the provider's own blocks, because it refused them."""
    extra: str = ""
    """One more text for the model, in this query only."""
    resumes: bool = False
    """Whether the last utterance was interrupted and is to be continued."""
    withheld: frozenset[str] = frozenset()
    """The keys of images and files to leave out, because the provider may have refused the query for them."""


class Counting(NamedTuple):
    """How a provider counts the tokens of a query without answering it."""

    path: str
    fields: tuple[str, ...]
    """The fields of a query's request that its count depends on."""
    answer: str
    """The field of the answer that has the count."""
    wrapped: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """Makes the body of the request from these fields."""


class Family(ABC):
    """One provider's interface to one model. It remembers refused parameters and encoded contexts."""

    provider: ClassVar[str]
    base_url: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    """The environment variables that may have the key, in the order in which they are tried."""
    needs_key: ClassVar[bool] = True
    key_header: ClassVar[tuple[str, str]] = ("authorization", "Bearer ")
    """The header for the key, and the text before the key in it."""
    items: ClassVar[str] = "messages"
    """The field of a request that has the list of messages."""
    decodes: ClassVar[type[Decoder]]
    """The decoder of answers."""
    writes: ClassVar[type[Writer]]
    """The writer of contexts, with the name of the model and that of the provider."""
    takes: ClassVar[Takes] = Takes()
    """The images and other files that the provider accepts."""
    doubtful: ClassVar[bool] = False
    """Whether the server may accept `tool_choice` and ignore it."""
    lessons: ClassVar[Mapping[str, str]] = {}
    """For each parameter, the pattern of an error that refuses it."""
    is_strict: ClassVar[bool] = False
    """Whether the provider can hold its model to the schema of a tool."""
    level: ClassVar[str] = "effort"
    """The parameter for the level of thinking."""

    serves: ClassVar[str] = ""
    """Its row in `terms.server_tools.TAKEN`: the tools of its provider, and their prices."""
    written: ClassVar[Table] = {}
    """How to write the settings that families share; the family lacks the settings that are not in the table."""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Other settings and parameters that the family lacks."""
    seller: ClassVar[str | None] = None
    """The seller of its models, by the id in the dataset of prices; None for models on the user's own machine."""
    reports_cost: ClassVar[bool] = False
    """Whether its answers contain their cost."""

    fixed: ClassVar[Mapping[str, str]] = {}
    """The headers of every request."""

    def __init__(self, model: str, facts: Model, *, by_schema: bool = False) -> None:
        self.model = model
        self.known = facts
        self.by_schema = by_schema
        """Whether the model has no tools, and writes its calls as JSON."""
        self.lessons_learnt = Lessons()
        self._fits: dict[bytes, Fitted] = {}
        self._fitted_tools: tuple[Sequence[ToolDefinition], bool, Sequence[ToolDefinition]] | None = None
        self.accepted: set[str] = set()
        """The keys of images and files that the provider has accepted."""
        self.refused: set[str] = set(self.lacks)
        """Parameters that are known to be refused."""
        if not facts.sampling:
            self.refused |= {"temperature", "top_p"}
        if not facts.forced:
            self.refused.add("tool_choice")
        writer = self.make_writer()
        self.rules = writer.rules
        self.encoder = Encoder(PlainWriter(writer) if by_schema else writer)

    @property
    def name(self) -> str:
        """The crystal's name in the loom."""
        return f"{self.provider}:{self.model}"

    @property
    @abstractmethod
    def path(self) -> str:
        """The path of queries below the base address."""

    def make_writer(self) -> Writer:
        """Return the writer of contexts for this model."""
        return self.writes(self.model, self.provider, self.takes)

    @abstractmethod
    def write_fields(self, query: ProviderQuery, system: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the fields of a request except the messages; fields of one object are merged.

        Each has the name of the parameter that a model may refuse, "" if it is always part of the request.
        Fields that are None are not sent.
        """

    @property
    def counting(self) -> Counting | None:
        """How the provider counts tokens; None if it does so only with an answer."""
        return None

    def fit(self, schema: Mapping[str, Any]) -> Fitted:
        """Return the schema nearest to a user's that this family accepts."""
        return keep_schema(schema)

    def fit_schema(self, schema: Mapping[str, Any]) -> Fitted:
        """Return the schema of an answer, fitted to this family."""
        key = dump_exactly(schema)
        fitted = self._fits.get(key)
        if fitted is None:
            if len(self._fits) >= SCHEMAS:
                self._fits.clear()
            fitted = self._fits[key] = self.fit(schema)
        return fitted

    def encode(self, query: ProviderQuery) -> Encoded:
        """Return the encoded context of a query."""
        return self.encoder.encode(
            query.messages, extra=query.extra, bare=query.bare, resumes=query.resumes, withheld=query.withheld
        )

    def make_request(self, query: ProviderQuery) -> ProviderRequest:
        """Return the request for a query, without the parameters that were refused."""
        offered, adjusted = query.tools, dict[str, Adjusted]()
        query = query._replace(tools=self._fit_tools(offered), choice=fit_choice(query.choice, self.rules))
        inexpressible: tuple[str, ...] = ()
        if (schema := query.settings.schema) is not None:
            fitted = self.fit_schema(schema)
            if fitted.schema is None:
                inexpressible = ("schema",)
            elif not fitted.strict:
                adjusted["schema"] = Adjusted("strict", f"not strict: {fitted.why}")
            if fitted.schema is None or not self.should_send("schema") or "schema" in self.exclude(query):
                query = query._replace(extra="\n".join(text for text in (query.extra, describe_schema(schema)) if text))
        encoded = self.encode(query)
        effort = query.settings.effort
        if effort is not None and (level := self._choose_level(effort)) != effort:
            adjusted["effort"] = Adjusted(effort, level)
            query = query._replace(settings=query.settings._replace(effort=level))
        typed = self._write_typed_settings(query) if query.settings.typed else ()
        parts = [
            (parameter, present)
            for parameter, fields in (*typed, *self.write_fields(query, encoded.system))
            if (present := {name: value for name, value in fields.items() if value is not None})
        ]
        values = {parameter: dump_exactly(present) if parameter in VALUES else b"" for parameter, present in parts}
        if any(isinstance(file, Image) for file in encoded.files.values()):
            values = {IMAGES: b"", **values}
        if self.is_strict and any(tool.is_strict for tool in offered):
            values = {STRICT: b"", **values}
        wanted, excluded = frozenset(values), self.exclude(query)
        sent = {
            parameter: value
            for parameter, value in values.items()
            if self.should_send(parameter)
            and parameter not in excluded
            and not self.lessons_learnt.has(parameter, value, wanted)
        }
        body: dict[str, Any] = {}
        for parameter, part in parts:
            if parameter in sent:
                add_fields(body, part)
        served = self.translate_server_tools(query)
        if served is not NOTHING:
            body["tools"] = [*body.get("tools", ()), *served.tools]
            add_fields(body, served.fields)
        add_fields(body, query.settings.more)
        pieces: list[bytes | bytearray] = [
            dump_exactly(body)[:-1],
            b"," if body else b"",
            b'"%b":[' % self.items.encode(),
        ]
        for n, message in enumerate(encoded.parts):  # these are already JSON
            pieces += [b",", message] if n else [message]
        refused = self.encoder.writer.takes.refused | query.withheld
        left = [file for key, file in encoded.files.items() if key in refused] if refused else []
        withheld = [IMAGES if isinstance(file, Image) else FILES for file in left]
        withheld += [FILES] if encoded.withheld else []
        unsent = [parameter for parameter in values if parameter not in sent and parameter not in OUR_OWN]
        return ProviderRequest(
            path=self.path,
            body=b"".join([*pieces, b"]}"]),
            utterance=encoded.utterance,
            tools=frozenset([tool.name for tool in query.tools]),
            names={
                sent.name: tool.name for sent, tool in zip(query.tools, offered, strict=True) if sent.name != tool.name
            }
            if query.tools is not offered
            else {},
            sent=sent,
            wanted=wanted,
            effort=query.settings.effort,
            left_out=(*inexpressible, *withheld, *self._find_lacking(query.settings), *unsent),
            adjusted=adjusted,
            headers=served.headers,
            secrets=served.secrets,
            files={key: file for key, file in encoded.files.items() if key not in refused} if encoded.files else {},
        )

    def _fit_tools(self, tools: Sequence[ToolDefinition]) -> Sequence[ToolDefinition]:
        """Return the definitions under names that the provider accepts; the same tools as last time cost nothing.

        Those to which the provider can hold its model have the schema that it accepts for that; no other `is_strict`.
        """
        is_strict = self.is_strict and self.should_send(STRICT)
        if self._fitted_tools is None or self._fitted_tools[0] is not tools or self._fitted_tools[1] != is_strict:
            fitted = fit_tools(tools, self.rules)
            if any(tool.is_strict for tool in fitted):
                fitted = [self._fit_strict(tool, is_strict=is_strict) for tool in fitted]
            self._fitted_tools = (tools, is_strict, fitted)
        return self._fitted_tools[2]

    def _fit_strict(self, tool: ToolDefinition, *, is_strict: bool) -> ToolDefinition:
        if not tool.is_strict:
            return tool
        fitted = self.fit_schema(tool.parameters) if is_strict else Fitted(None)
        if fitted.schema is None or not fitted.strict:
            return replace(tool, is_strict=False)
        return replace(tool, parameters=fitted.schema)

    def _find_lacking(self, settings: SamplingSettings) -> tuple[str, ...]:
        if not (self.lacks or settings.typed):
            return ()
        own = [name for name in self.lacks if getattr(settings, name, None)]
        return (*own, *[name for name in settings.typed if name not in self.written])

    def _choose_level(self, effort: str) -> str:
        """Return the level of thinking to send: one that the model has and did not refuse. Raises CrystalError."""
        if effort not in LEVELS and self.has_budget:
            expected = ", ".join(f'"{level}"' for level in LEVELS)
            raise CrystalError(f"{self.name}: effort: expected one of {expected}, got {effort!r:.80}")
        return self.levels.get(level := self.lessons_learnt.find_level(self.levels.get(effort, effort)), level)

    @property
    def levels(self) -> Mapping[str, str]:
        """For each level of thinking that the model lacks, the nearest one that it has."""
        return {}

    @property
    def has_budget(self) -> bool:
        """Whether a level is sent as a number of tokens; only levels with a number are allowed then."""
        return False

    def _write_typed_settings(self, query: ProviderQuery) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for name, value in query.settings.typed.items():
            if name in self.written:
                yield name, self.written[name](value, bool(query.tools))

    def translate_server_tools(self, query: ProviderQuery) -> Translated:
        """Return the server tools of a query in the form of its request."""
        tools = query.settings.server_tools
        if not tools:
            return NOTHING
        try:
            check_server_tools(self.serves or self.provider, self.model, tools, beside=bool(query.tools))
        except InvalidCantrip as error:
            raise CrystalError(str(error)) from error
        return TRANSLATIONS[self.serves](tools)

    def exclude(self, query: ProviderQuery) -> frozenset[str]:  # noqa: ARG002
        """Return the parameters that cannot be combined with the others of a query."""
        return frozenset()

    def make_decoder(self, request: ProviderRequest) -> Decoder:
        """Return the decoder for the answer to a request."""
        decoder = self.decodes(self.model, utterance=request.utterance, tools=request.tools, provider=self.provider)
        decoder.draft.names = request.names
        return decoder

    def learn(self, error: ProviderError, request: ProviderRequest) -> str | None:
        """Return the refused parameter, which is changed or left out from now on; None if the error teaches nothing."""
        if IMAGES in request.sent and self.should_send(IMAGES) and is_image_refusal(error):
            self.show_no_images()
            return IMAGES
        if error.status not in (400, 422) or error.retryable:  # a transient error teaches nothing
            return None
        refusal = str(error).lower()
        typed = {name: PATTERNS[name] for name in self.written if name in request.sent}
        for parameter, pattern in {**typed, **self.lessons}.items():
            if parameter in request.sent and self.should_send(parameter) and re.search(pattern, refusal):
                is_unknown = parameter == self.level and request.effort is not None and request.effort not in LEVELS
                if is_unknown or is_mistake(parameter, refusal):
                    return None
                self._note(parameter, refusal, request)
                return parameter
        return None

    def _note(self, parameter: str, refusal: str, request: ProviderRequest) -> None:
        learnt = self.lessons_learnt
        if is_absent(refusal):
            learnt.note(parameter)
        elif parameter == self.level and request.effort is not None:
            if learnt.note_level(request.effort, refusal) is None:
                learnt.note(parameter)
        elif parameter in VALUES:
            learnt.note(parameter, request.sent[parameter], request.wanted)
        else:
            learnt.note(parameter)

    def should_send(self, parameter: str) -> bool:
        """Return whether to send a parameter."""
        return parameter not in self.refused and not self.lessons_learnt.has(parameter)

    def show_no_images(self) -> None:
        """Replace images by descriptions from now on: the model accepts none."""
        self.refused.add(IMAGES)
        self.encoder.writer.blind()
        self.encoder.forget()

    def withhold(self, keys: frozenset[str]) -> None:
        """Leave out these images and files from now on: the provider refuses them, and answered without them."""
        if keys:
            writer = self.encoder.writer
            writer.refuse(frozenset([*writer.takes.refused, *keys][-REMEMBERED:]))
            self.encoder.forget()

    def note_accepted(self, files: Mapping[str, File]) -> None:
        """Remember the images and files that the provider has accepted: a later refusal is not about them."""
        if not files.keys() <= self.accepted:
            self.accepted = {*self.accepted, *files} if len(self.accepted) < REMEMBERED else set(files)

    image_tokens: Callable[[File], int] = staticmethod(estimate_by_pixels)
    """Return an estimate of the tokens of an image."""

    def continue_turn(self, query: ProviderQuery, response: Response) -> ProviderQuery | None:  # noqa: ARG002
        """Return the query that continues an interrupted turn, None if the turn is done. `query` began the turn."""
        return None


class ProviderCrystal(AnsweringCrystal):
    """A model of a provider, as a crystal. The functions of the families make one.

    `name` is its name in the loom, `context_window` its size in tokens if known. It keeps no conversation, only encoded
    contexts and refused parameters.
    """

    def __init__(
        self,
        family: Family,
        *,
        prices: Prices,
        base_url: str | None = None,
        name: str | None = None,
        context_window: int | None = None,
        limits: Limits | None = None,
        breaker: Breaker | None = None,
        access: Access | None = None,
        **connection: Unpack[ConnectionSettings],
    ) -> None:
        self.family = family
        self.name: str = name or family.name
        self.context_window: int | None = context_window or family.known.window
        self.limits = limits
        self.breaker = breaker
        self.access = access
        self._prices = prices
        self.address: str = render_url(base_url or family.base_url)
        """The address of its queries, without a password or a token."""
        key, environment = connection.get("api_key"), EnvironmentKey(family.keys[0], family.keys[1:])
        self._key: Callable[[], str | None] = key if callable(key) else environment if not key else lambda: key
        self._variable = key.variable if isinstance(key, EnvironmentKey) else family.keys[0]
        self.estimator: Estimator = Estimator(self.image_tokens)
        anonymous = connection.get("client") is not None or connection.get("headers") or base_url or access
        self._needs_key = family.needs_key and not anonymous
        self._client = Client(
            family.name,
            base_url or family.base_url,
            key=self._key,
            key_header=family.key_header,
            headers=family.fixed,
            access=access,
            connection=connection,
        )

    def learn_window(self, tokens: int | None) -> None:
        """Take the window that a refusal named, if it is unknown; entities that are loaded later fold in time."""
        self.context_window = self.context_window or tokens

    def image_tokens(self, image: File) -> int:
        """Return an estimate of the tokens of an image, by the formula of the family."""
        return 0 if not self.family.should_send(IMAGES) else self.family.image_tokens(image)

    def why_not(self, file: File) -> str | None:
        """Return why the model does not accept an image or another file; None if it does."""
        return self.family.encoder.writer.takes.why_not(file)

    @property
    def secrets(self) -> Mapping[str, str]:
        """The secrets that must not leave the runtime, with the key under the name of its variable."""
        key = self._key()
        return self._client.secrets if key is None else {**self._client.secrets, self._variable: key}

    async def answer_query(self, query: Query) -> Response:
        """Return one answer. `query.emit` gets its payloads as they arrive.

        Raises ProviderError if the provider fails, CrystalError if its answer breaks the contract.
        """
        return await self._answer(
            query.invocation, query.options, self._client.run, query.emit, report=query.report_unanswered
        )

    async def prepare(self, invocation: Invocation, options: Mapping[str, Any]) -> ProviderRequest:
        """Return the request that a query begins with, without sending it."""

        async def keep(request: ProviderRequest, decoder: Decoder, emit: Emit | None) -> Response:  # noqa: ARG001
            raise _Prepared(request)

        try:
            await self._answer(invocation, options, keep)
        except _Prepared as prepared:
            return prepared.request
        raise AssertionError("a query sends a request")

    async def read(
        self, invocation: Invocation, options: Mapping[str, Any], answer: bytes | ProviderError, *, batch: bool = False
    ) -> Response:
        """Return the response in a later answer to the request of `prepare`: a body, or an error.

        An interrupted turn continues at once, over the connection. With `batch`, the body has the price of a batch.

        Raises AskAgain if the answer teaches that another request has to be sent; otherwise as `invoke` does.
        """
        times = 0

        async def hear(request: ProviderRequest, decoder: Decoder, emit: Emit | None) -> Response:
            nonlocal times
            times += 1
            if times > 1:
                if isinstance(answer, ProviderError):
                    raise AskAgain(request, f"{self.name}: {answer}")
                return await self._client.run(request, decoder, emit)
            if isinstance(answer, ProviderError):
                raise answer
            decoder.feed(ServerSentEvent(answer))
            return decoder.finish()

        return await self._answer(invocation, options, hear, batch=batch)

    async def count(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolDefinition] = (),
        options: Mapping[str, Any] | None = None,
    ) -> int:
        """Return the tokens that the provider counts for a context, without a query; the estimates learn from it.

        Raises CrystalError for a provider that does not count without a query, ProviderError where it fails.
        """
        counting = self.family.counting
        if counting is None:
            families = "anthropic, openai, google, bedrock or vertex"
            raise CrystalError(
                f"{self.name}: its provider counts tokens only with an answer; expected one of {families}"
            )
        invocation = Invocation(messages, tools)
        request = self.family.make_request(ProviderQuery(messages, tools, None, SamplingSettings.of(options or {})))
        fields = parse_object(request.body) or {}
        body = counting.wrapped({name: fields[name] for name in counting.fields if name in fields})
        answer = await self.fetch("POST", counting.path, dump_exactly(body), request.headers)
        counted = tokens((parse_object(answer) or {}).get(counting.answer))
        if not counted:
            raise ProviderError(f"{self.name}: expected a count of tokens in {counting.answer}, got {answer[:80]!r}")
        self.estimator.learn(invocation, Usage(counted))
        return counted

    async def fetch(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        largest: int = LARGEST_ANSWER,
    ) -> bytes:
        """Return the body of the response to a request other than a query. Raises ProviderError."""
        self._check_key()
        return await self._client.fetch(method, path, body, headers or {}, largest)

    def _check_key(self) -> None:
        if self._needs_key and not self._key():
            check_query(self.family.name, self._client.base_url)  # a test that refuses queries needs no key
            raise CrystalError(f"{self.name}: no API key: set {self._variable}, or pass api_key=…")

    async def _answer(
        self,
        invocation: Invocation,
        options: Mapping[str, Any],
        carry: Carry,
        emit: Emit | None = None,
        *,
        batch: bool = False,
        report: Callable[[Usage], None] | None = None,
    ) -> Response:
        self._check_key()
        tools = invocation.tools
        provider_query = ProviderQuery(
            invocation.messages, tools, invocation.tool_choice if tools else None, SamplingSettings.of(options)
        )
        query = _Query(self, provider_query, carry, emit)
        try:
            response = await query.answer()
        except CrystalError as error:
            error.usage = self._sum_usage(query.counts, batch=batch)
            raise
        except anyio.get_cancelled_exc_class():
            if report is not None and query.counts:
                report(self._sum_usage(query.counts, batch=batch))
            raise
        answered = response.metadata.get("model")
        response = replace(response, usage=self._sum_usage(query.counts, answered, batch=batch))
        if not response.usage.total_tokens:
            model = self.find_model(answered, self.family.model, batch=batch)
            estimate = self.estimator.estimate_usage(invocation, response)
            cost = model.cost(Counts(estimate.prompt_tokens, estimate.completion_tokens))
            response = replace(response, usage=Usage() + replace(estimate, cost=cost))
        return _fit_to_schema(provider_query.settings.schema, response)

    def _sum_usage(self, counts: Sequence[Counts], answered: object = None, *, batch: bool) -> Usage:
        """Return the usage, with its cost. In a batch, only the first answer has the price of a batch."""
        names, fees = (answered, self.family.model), FEES.get(self.family.serves, {})
        first = int(batch)
        usage = sum_usage(counts[first:], self.find_model(*names), fees)
        return sum_usage(counts[:first], self.find_model(*names, batch=True), fees) + usage if batch else usage

    def check_server_tools(self, tools: Sequence[ServerTool]) -> None:
        """Raise InvalidCantrip if the model does not accept one of the tools, or one of their settings."""
        check_server_tools(self.family.serves or self.family.provider, self.family.model, tools)

    @property
    def has_prices(self) -> bool:
        """Whether the model's prices are known; without them, `max_cost` cannot bound an entity."""
        return self.family.reports_cost or self.find_model(self.family.model) is not UNKNOWN

    def find_model(self, *names: object, batch: bool = False) -> Model:
        """Return the first of these models that is known; with `batch`, at the prices of a batch."""
        return self._prices.model(*names, seller=self.family.seller, address=self.address, batch=batch)

    def keep_connections(self) -> AbstractAsyncContextManager[object] | None:
        """Return the block of this crystal."""
        return self

    async def __aenter__(self) -> Self:
        """Keep connections open between queries, in this event loop, until the block ends."""
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *reason: object) -> None:
        await self._client.__aexit__(None, None, None)

    def __repr__(self) -> str:
        return f"<crystal {self.name}>"


class _Query:
    """One query on its way to one answer."""

    def __init__(
        self, crystal: ProviderCrystal, provider_query: ProviderQuery, carry: Carry, emit: Emit | None
    ) -> None:
        self.crystal = crystal
        self.carry = carry
        self.family = crystal.family
        self.asked = provider_query
        self.emit = emit
        self.counts: list[Counts] = []
        self.left_out: list[str] = []
        self.adjusted: dict[str, Adjusted] = {}
        self.items = 0
        self.utterance = 1

    async def answer(self) -> Response:
        """Return the answer, after as many requests as it needs."""
        must_call = has_to_call(self.asked.choice)
        if self.family.by_schema:
            return self._report_changes(await self._simulate(native=False))
        if must_call and not self.family.should_send("tool_choice") and self.family.should_send("schema"):
            return self._report_changes(await self._simulate(native=True))
        response = await self._ask(self.asked)
        by_schema = self.family.doubtful and self.family.should_send("schema")
        if must_call and not response.tool_calls and by_schema:
            # some servers accept `tool_choice` and ignore it
            self.family.lessons_learnt.note("tool_choice")
            self._discard("no call came, although one had to")
            response = await self._simulate(native=True)
        return self._report_changes(response)

    async def _ask(self, query: ProviderQuery, *, shown: bool = True) -> Response:
        """Ask, and continue the answer as often as it is interrupted."""
        response = await self._ask_once(query, shown=shown, resumes=False)
        for _ in range(PAUSES):
            more = self.family.continue_turn(query, response)
            if more is None:
                return response
            rest = await self._ask_once(more, shown=shown, resumes=True)
            response = join_responses(response, rest, self.family.decodes.seam)
        raise ProviderError(f"{self.crystal.name}: the turn was interrupted more than {PAUSES} times", retryable=False)

    async def _ask_once(self, query: ProviderQuery, *, shown: bool, resumes: bool) -> Response:
        lessons: list[str] = []
        whole = query
        for _ in range(LESSONS):
            request = self.family.make_request(query)
            decoder = self.family.make_decoder(request)
            decoder.draft.first, decoder.draft.shows_served = self.items, True
            decoder.resumes = resumes
            try:
                response = await self.carry(request, decoder, self._emit if shown else None)
            except ProviderError as error:
                if decoder.counts != NO_COUNTS:  # a failed answer costs as well
                    self.counts.append(decoder.counts)
                if error.overflows:
                    self.crystal.learn_window(error.window)
                    raise
                learnt = self.family.learn(error, request)
                if learnt is None:
                    reduced = self._leave_out(query, error, request)
                    if reduced is None:
                        if query is not whole:  # the omitted parameter was not the reason
                            self.family.encoder.forget()
                        raise
                    query, learnt = reduced
                lessons.append(learnt)
                if learnt in UNSEEN:
                    self.left_out.append(learnt)
                continue
            except CrystalError:  # an answer that breaks the contract costs as well
                self.counts.append(decoder.counts)
                raise
            except anyio.get_cancelled_exc_class():  # and one whose caller was cancelled
                if decoder.counts != NO_COUNTS:
                    self.counts.append(decoder.counts)
                raise
            self.counts.append(decoder.counts)
            self.family.withhold(query.withheld)
            self.family.note_accepted(request.files)
            self.utterance = request.utterance
            self.left_out += request.left_out
            self.adjusted.update(request.adjusted)
            strict = [tool for tool in query.tools if tool.is_strict]
            return _drop_nulls(response, strict) if STRICT in request.sent else response
        raise CrystalError(f"{self.crystal.name} refuses one parameter after the other: {', '.join(lessons)}")

    def _leave_out(
        self, query: ProviderQuery, error: ProviderError, request: ProviderRequest
    ) -> tuple[ProviderQuery, str] | None:
        """Return the query without the part that the provider may have refused, and the name of that part; None if
        there is no such part.

        The part may be the provider's own blocks, or images and files.
        """
        can_be_bare = not query.bare and error.status == 400 and not error.retryable
        bare = query._replace(bare=True), "blocks"
        if can_be_bare and _ABOUT_BLOCKS.search(str(error)):
            return bare
        keys = find_refused_content(error, request.body, self.family.items, request.files, self.family.accepted)
        if keys:
            return query._replace(withheld=query.withheld | keys), FILES
        find = self.family.encoder.writer.find_own_content
        return bare if can_be_bare and any(find(m) is not None for m in query.messages if m.blocks) else None

    async def _simulate(self, *, native: bool) -> Response:
        """Return an answer by a schema. `native`: the server has tools, but cannot be forced to call one."""
        query, must_call = self.asked, has_to_call(self.asked.choice)
        if (gate := find_named_gate(query.choice)) is not None:
            query = query._replace(tools=tuple(tool for tool in query.tools if tool.name == gate))
        if native:
            plain = query._replace(choice="none")
        elif query.tools and query.choice != "none":
            plain = query._replace(tools=(), choice=None)
        else:
            return await self._ask(query._replace(tools=(), choice=None))
        plain = plain._replace(
            settings=query.settings._replace(schema=make_schema(query.tools, must_call=must_call)),
            extra=write_instructions(query.tools, must_call=must_call, described=native),
        )
        response = await self._ask(plain, shown=False)
        simulated, payloads = extract_call(response, query.tools, self.utterance, first=self.items)
        for payload in payloads:
            self._emit(payload)
        return _drop_nulls(simulated, query.tools)

    def _emit(self, payload: Payload) -> None:
        if isinstance(payload, ItemStart):
            self.items += 1
        if self.emit is not None:
            self.emit(payload)

    def _discard(self, why: str) -> None:
        """Close the items that were emitted for an answer that is not used."""
        if self.emit is not None:
            for number in range(self.items):
                self.emit(ItemError(str(number), StreamError("RETRY", why)))

    def _report_changes(self, response: Response) -> Response:
        changes: dict[str, Any] = {}
        if self.left_out:
            changes["left_out"] = tuple(dict.fromkeys(self.left_out))
        if self.adjusted:
            changes["adjusted"] = {name: adjusted._asdict() for name, adjusted in self.adjusted.items()}
        return replace(response, metadata={**response.metadata, **changes}) if changes else response


def _drop_nulls(response: Response, tools: Sequence[ToolDefinition]) -> Response:
    """Return a response whose calls of these tools have no nulls for omitted arguments: their schema required all."""
    schemas = {tool.name: tool.parameters for tool in tools}
    calls = [
        replace(call, args=drop_nulls(dict(call.args), schemas[call.gate]))
        if call.gate in schemas and call.args is not None
        else call
        for call in response.tool_calls
    ]
    return replace(response, tool_calls=tuple(calls))


def _fit_to_schema(schema: Mapping[str, Any] | None, response: Response) -> Response:
    """Return an answer in the form of the schema that the caller asked for. Raises NotAsAsked if it does not fit."""
    is_over = find_cut_off(response.metadata) is not None or "refusal" in response.metadata
    if schema is None or response.content is None or response.tool_calls or is_over:
        return response
    text, how = fit_answer(response.content, schema)
    if how:
        wanted = (
            f"[this does not fit the schema: {how}. Answer again, with one JSON value that fits it and nothing else]"
        )
        raise NotAsAsked(f"an answer that does not fit output_schema: {how}", response, wanted, MISFIT)
    return response if text == response.content else replace(response, content=text)


def join_responses(response: Response, rest: Response, seam: str = "\n\n") -> Response:
    """Return two responses as one: the second continues the first."""
    blocks = response.blocks
    if response.blocks and rest.blocks:
        content = [*response.blocks[0]["content"], *rest.blocks[0]["content"]]
        blocks = ({**response.blocks[0], "content": content},)
    return replace(
        rest,
        content="".join(text for text in (response.content, rest.content) if text) or None,
        tool_calls=response.tool_calls + rest.tool_calls,
        thinking=seam.join(text for text in (response.thinking, rest.thinking) if text) or None,
        blocks=blocks or rest.blocks,
        metadata={**rest.metadata, **_merge_server_calls(response.metadata, rest.metadata)},
        images=tuple(dict.fromkeys(response.images + rest.images)),
    )


def _merge_server_calls(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server calls of two parts: a call may be in the first, and its result in the second."""
    calls: dict[str, dict[str, Any]] = {}
    for call in (*first.get("server_calls", ()), *second.get("server_calls", ())):
        calls[call["id"]] = {**calls.get(call["id"], {}), **call}
    cited = [*first.get("citations", ()), *second.get("citations", ())]
    return {name: values for name, values in (("server_calls", list(calls.values())), ("citations", cited)) if values}


def sum_usage(counts: Sequence[Counts], model: Model, fees: Mapping[str, float] | None = None) -> Usage:
    """Return the usage of several counts, with its cost. `fees` are US dollars for each use of a server tool."""
    usage = Usage()
    for count in counts:
        extra = sum(times * (fees or {}).get(tool, 0.0) for tool, times in count.uses)
        usage += replace(count.make_usage(), cost=model.cost(count) + extra if count.cost is None else count.cost)
    return usage
