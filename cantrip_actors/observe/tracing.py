"""Spans of one episode, written with OpenTelemetry's API; `names.py` has their names.

    invoke_agent notes                        the episode
    ├── chat claude-sonnet-5-5                a query, all its attempts
    ├── execute_tool search                   a gate
    ├── execute_tool python                   a program of a code circle
    │   └── execute_tool search               a gate that it calls
    └── execute_tool call_agent
        └── invoke_agent notes                the episode of a child

An action begins a span, and the record of its end ends it (`runtime/events/instrument.py`), so a running episode needs
no memory except its open spans. The cell's context variables make a span current; it is never attached in one task and
detached in another.

An exporter or a processor that raises costs the spans of that episode, and nothing else.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from cantrip_actors.machine.actions import (
    Action,
    Ask,
    Await,
    Collect,
    Compute,
    Consult,
    Contact,
    Finish,
    Remember,
    Run,
    Spawn,
)
from cantrip_actors.observe import names
from cantrip_actors.observe.backfill import RecordedSpan, build_spans, emit, find_parent_trace
from cantrip_actors.observe.content import QueryMessages, build_definitions, build_output, dump_text
from cantrip_actors.observe.measuring import get_address, get_error_type, get_method, get_tool_type
from cantrip_actors.observe.requests import RequestEnd
from cantrip_actors.observe.usage import build_usage_attributes
from cantrip_actors.redact.logs import get_logger
from cantrip_actors.runtime.entity.cell import Bound, Cell
from cantrip_actors.runtime.events.context_variables import ContextVariables
from cantrip_actors.runtime.events.instrument import EpisodeSpans
from cantrip_actors.stream.events import (
    DecidedEvent,
    EntityEvent,
    FoldedEvent,
    RequestedEvent,
    StepCompleteEvent,
    ToolResultEvent,
)
from cantrip_actors.stream.reading import read_events
from cantrip_actors.terms.crystal import get_crystal_name
from cantrip_actors.terms.errors import CrystalError, ProviderError
from cantrip_actors.terms.messages import Response
from supervisors import Crash, ExitReason

if TYPE_CHECKING:
    from cantrip_actors.machine.state import State
    from cantrip_actors.observe.settings import TracingSettings
    from cantrip_actors.records.records import Record
    from cantrip_actors.runtime.tree import Tree

P = ParamSpec("P")
T = TypeVar("T")

_log = get_logger("cantrip_actors.observe")

_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_RAISED = re.compile(r"([A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Group|Warning|Timeout))(?:: |$)")

OUTCOME_UNKNOWN: Final = "outcome_unknown"


def format_traceparent(where: SpanContext) -> str | None:
    """Return the W3C `traceparent` of a span; None if it is not valid."""
    if not where.is_valid:
        return None
    return f"00-{where.trace_id:032x}-{where.span_id:016x}-{where.trace_flags & 1:02x}"


def parse_traceparent(text: str | None) -> SpanContext | None:
    """Return the span that a `traceparent` names; None for any other text."""
    match = _PARENT.fullmatch(text or "")
    if match is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags & 1))
    return context if context.is_valid else None


def find_context_variable() -> ContextVar[Any]:
    """Return the context variable in which OpenTelemetry keeps the current context."""

    def replace_environment() -> ContextVar[Any]:
        before = copy_context()
        otel.attach(otel.Context({"cantrip_actors": True}))
        return next(variable for variable, value in copy_context().items() if before.get(variable) is not value)

    return copy_context().run(replace_environment)


def attempt(what: str, work: Callable[[], T]) -> T | None:
    """Return what `work` returns; None, and a line in the log, if an SDK's processor or the user's function raises."""
    try:
        return work()
    except Exception as error:  # observation, never control
        _log.warning(what, error=type(error).__name__)
        return None


def guard_episode(method: Callable[Concatenate[Spans, P], None]) -> Callable[Concatenate[Spans, P], None]:
    """Make a method of spans harmless: after an error the episode is not traced any further."""

    def run_guarded(self: Spans, /, *args: P.args, **named: P.kwargs) -> None:
        if not self.is_broken:
            try:
                method(self, *args, **named)
            except Exception as error:  # observation, never control
                self.is_broken = True
                _log.warning("an episode is not traced any further", error=type(error).__name__)

    return run_guarded


class _OpenSpan(NamedTuple):
    """A span that has begun, and the context in which it is the current one."""

    span: Span
    context: otel.Context


class Spans(EpisodeSpans):
    """The spans of one episode."""

    def __init__(self, settings: TracingSettings, core: Tree, cell: Cell, state: State, *, attempt: int = 1) -> None:
        self._core = core
        self._settings = settings
        self._cell = cell
        self._attempt = attempt
        self._others = tuple([pair for pair in cell.context_variables if pair[0] is not settings.variable])
        self.is_broken = False
        self._episode = _OpenSpan(trace.INVALID_SPAN, otel.Context())
        self._turn: _OpenSpan | None = None
        self._program: _OpenSpan | None = None
        self._inner: _OpenSpan | None = None
        self._call = ""
        """The id of the gate call whose span is `_inner`; empty for a query."""
        self._checks = False
        self._denied = False
        self._turns = 0
        self._compacted = state.conversation.folded > 0
        self._attempts = 1
        self._first_chunk: float | None = None
        self._query: _AboutQuery | None = None
        self._summary: _AboutQuery | None = None
        self._messages: QueryMessages | None = None
        self._shown: Mapping[str, Any] = {}
        self._reasons: list[str] = []
        self._descriptions: dict[str, str] = {}
        """The redacted descriptions of the gates that were called: once for an episode."""

    # What the runtime asks for

    @property
    def outer(self) -> ContextVariables:
        """The context variables of the episode itself, whatever the entity's current action."""
        return self._add_span(self._episode.context)

    @property
    def variables(self) -> ContextVariables:
        """The context variables of the entity's current action."""
        return self._add_span(self._context)

    def _add_span(self, context: otel.Context) -> ContextVariables:
        return (*self._others, (self._settings.variable, context))

    @property
    def trace(self) -> str | None:
        """The `traceparent` of the entity's current action."""
        return format_traceparent(trace.get_current_span(self._context).get_span_context())

    @property
    def query_headers(self) -> Mapping[str, str]:
        """The `traceparent` of the running query if the settings send it to providers."""
        header = self.trace if self._settings.outgoing_traceparent else None
        return {} if header is None else {"traceparent": header}

    @property
    def _context(self) -> otel.Context:
        return self._outer_context if self._inner is None else self._inner.context

    @property
    def _outer_context(self) -> otel.Context:
        """The context in which the next action begins its span."""
        return (self._program or self._turn or self._episode).context

    def _start(
        self,
        name: str,
        attributes: Mapping[str, Any],
        parent: otel.Context,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Sequence[Link] = (),
    ) -> _OpenSpan:
        span = self._settings.tracer.start_span(name, parent, kind, attributes, links)
        return _OpenSpan(span, trace.set_span_in_context(span, parent))

    # The episode

    def begin(self, parent: otel.Context, links: Sequence[Link]) -> bool:
        """Begin the episode's span; return whether any exporter traces it."""
        plan = self._cell.plan
        name = plan.cantrip.name
        _, model = names.split_crystal_name(get_crystal_name(plan.cantrip.crystal))
        is_workflow = getattr(plan.cantrip.crystal, "is_workflow", False)
        operation = names.INVOKE_WORKFLOW if is_workflow else names.INVOKE_AGENT
        attributes = {
            names.OPERATION: operation,
            names.WORKFLOW if is_workflow else names.AGENT: name,
            names.CONVERSATION: plan.entity_id,
            names.REQUEST_MODEL: model,
            names.ENTITY: plan.entity_id,
            names.PARENT: plan.parent_entity,
            names.DEPTH: plan.cantrip.level,
            names.ATTEMPT: self._attempt,
            names.NAME: plan.name,
            names.OUTPUT_TYPE: "json" if "output_schema" in plan.cantrip.call.sampling() else None,
        }
        attributes = {key: value for key, value in attributes.items() if value is not None}
        self._episode = self._start(f"{operation} {name}" if name else operation, attributes, parent, links=links)
        if self._settings.wants_content and self._episode.span is not trace.INVALID_SPAN:
            only_new = self._settings.inputs == "new"
            self._messages = QueryMessages(self._redact, only_new=only_new)
        return self._episode.span.get_span_context().is_valid

    def _redact(self, value: Any) -> Any:
        return self._core.guard.redactor.value(value)

    @guard_episode
    def note_step(self, records: Sequence[Record], action: Action) -> None:
        """End the spans that the records end, and begin that of the action."""
        for event in read_events(records):
            self._note(event)
        if not self._call:  # a query that is still open was cancelled
            self._end_inner("cancelled")
        self._begin_action(action)

    @guard_episode
    def note_restart(self, reason: ExitReason | None) -> None:
        """End the spans that the crash interrupted."""
        self._cut(_crash_type(reason) or "cancelled")
        self._episode.span.add_event("cantrip.restarted", {names.ERROR: _crash_type(reason) or "shutdown"})

    @guard_episode
    def close(self, reason: ExitReason | None) -> None:
        """End all spans of an episode that was ended from outside."""
        if not self._episode.span.is_recording():
            return
        crash = _crash_type(reason)
        error = self._cell.error
        self._cut(crash or "cancelled")
        if crash is None and error is not None:
            crash = type(error).__name__
        self._finish("crashed" if crash else "suspended", None, crash)

    def _cut(self, kind: str) -> None:
        self._end_inner(kind)
        self._end_program(kind)
        self._end_turn(None)

    def _finish(self, reason: str, ward: str | None, error: str | None) -> None:
        span, cell = self._episode.span, self._cell
        if span.is_recording():
            span.set_attributes({names.TURNS: self._turns, names.END_REASON: reason})
            if self._reasons:
                span.set_attribute(names.FINISH_REASONS, self._reasons)
            if ward is not None:
                span.set_attribute(names.WARD, ward)
            outcome = cell.outcome
            if outcome is not None and reason not in ("crashed", "suspended"):
                self._set_usage(span, outcome.subtree_usage)
            if error is not None:
                span.set_attribute(names.ERROR, error)
                span.set_status(Status(StatusCode.ERROR, reason))
        span.end()

    def _set_usage(self, span: Span, usage: Any) -> None:
        on_agent = self._settings.usage_on_agent
        span.set_attributes(
            {
                names.INPUT_TOKENS if on_agent else names.USAGE_INPUT: usage.prompt_tokens,
                names.OUTPUT_TOKENS if on_agent else names.USAGE_OUTPUT: usage.completion_tokens,
                names.COST: usage.cost,
            }
        )

    # Records

    def _note(self, event: EntityEvent) -> None:
        match event:
            case ToolResultEvent():
                self._end_gate(event)
            case StepCompleteEvent():
                self._turns += event.continues is None
                self._end_turn(event)
            case FoldedEvent():
                self._compacted = True
            case RequestedEvent():
                request = {names.TOOL: event.gate, names.REQUEST: event.request_id}
                self._episode.span.add_event(names.ASKED_EVENT, request)
            case DecidedEvent():
                self._denied = event.decision in ("deny", "expired")
                decision = {names.REQUEST: event.request_id, names.DECISION: event.decision}
                self._episode.span.add_event(names.DECIDED_EVENT, decision)
            case _:
                pass

    def _end_gate(self, ran: ToolResultEvent) -> None:
        denied, self._denied = self._denied, False
        if ran.tool_call_id is None:
            self._end_program("program_error" if ran.is_error else None)
            return
        is_open = self._inner is not None and self._call == ran.tool_call_id
        if not is_open:  # it was decided without running anything
            self._begin_gate(ran.turn_id, ran.gate, ran.tool_call_id, None)
        kind = None
        if ran.is_error:
            kind = "refused" if denied or not is_open or self._checks else None
            gate = self._cell.plan.gates.get(ran.gate)
            is_remote = gate is not None and gate.server is not None  # a server's text says nothing of our classes
            kind = _find_marked(ran.result) or kind or ("tool_error" if is_remote else find_error_type(ran.result))
        if self._inner is not None and self._inner.span.is_recording():
            if self._settings.content_on_span:
                self._note_arguments(self._inner.span, ran.args)
                self._inner.span.set_attribute(names.RESULT, dump_text(self._redact(ran.result)))
            self._inner.span.set_attributes(self._get_session(ran.gate))
        self._end_inner(kind)

    def _note_arguments(self, span: Span, args: Mapping[str, Any] | None) -> None:
        if args is not None:
            span.set_attribute(names.ARGUMENTS, dump_text(self._redact(dict(args))))

    def _get_session(self, gate: str) -> dict[str, str]:
        """Return the attributes of the connection to a gate's server; a resumed entity has none before its call."""
        loaded = self._cell.plan.gates.get(gate)
        if loaded is None or loaded.server is None:
            return {}
        session = next(
            (server.session for server in self._cell.crystal.servers if server.server.name == loaded.server.name), None
        )
        attributes = () if session is None else ((names.MCP_VERSION, session.version), (names.MCP_SESSION, session.id))
        return {name: value for name, value in attributes if value is not None}

    # Actions

    def _begin_action(self, action: Action) -> None:
        match action:
            case Ask():
                self._begin_turn()
                self._begin_query(self._cell.crystal, action)
            case Collect():
                self._begin_query(self._cell.crystal, None)
            case Remember():
                summariser = self._cell.crystal.summariser
                if summariser is not None:
                    self._begin_query(summariser, None, is_summary=True)
            case Run() | Contact() | Spawn() | Await():
                self._begin_gate(getattr(action, "turn_id", ""), action.call.gate, action.call.id, action)
            case Compute():
                self._begin_program(action)
            case Consult():
                self._end_inner(None)
            case Finish():
                self._cut("cancelled")
                outcome = action.outcome
                failed = outcome.error is not None and not outcome.truncated
                self._finish(outcome.reason, outcome.ward, self._describe_failure() if failed else None)
            case _:
                pass

    def _describe_failure(self) -> str:
        error = self._cell.error
        return "_OTHER" if error is None else get_error_type(error)

    def _begin_turn(self) -> None:
        if self._settings.turn_spans and self._turn is None:
            self._turn = self._start(f"turn {self._turns + 1}", {}, self._episode.context)

    def _end_turn(self, done: StepCompleteEvent | None) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            if done is not None:
                turn.span.set_attribute(names.SEQUENCE, done.sequence)
            turn.span.end()

    def _begin_query(self, bound: Bound, action: Ask | None, *, is_summary: bool = False) -> None:
        self._end_inner("cancelled")
        about = self._summary if is_summary else self._query
        if about is None:
            about = _describe_query(self._cell, bound.crystal, is_summary=is_summary)
            self._summary, self._query = (about, self._query) if is_summary else (self._summary, about)
        name, kind, attributes = about
        attributes = (
            {**attributes, names.SUMMARY: True} if is_summary else {**attributes, names.SEQUENCE: self._turns + 1}
        )
        if self._compacted:
            attributes[names.COMPACTED] = True
        if not is_summary and self._core.bus.delivers_deltas:
            attributes[names.REQUEST_STREAM] = True
        self._inner = self._start(name, attributes, self._outer_context, kind)
        self._call, self._attempts, self._first_chunk, self._shown = "", 1, None, {}
        if action is not None and self._messages is not None:
            instructions, inputs = self._messages.split_query(action.messages)
            self._shown = {names.SYSTEM: instructions, names.INPUTS: inputs}
            if self._turns == 0 or self._settings.inputs == "all":
                self._shown = {**self._shown, names.TOOLS: self._redact(build_definitions(action.tools))}

    @guard_episode
    def note_answer(self, reply: Response | CrystalError) -> None:
        """End the span of the query."""
        if self._inner is None or self._call:
            return
        span, context = self._inner
        outputs: list[dict[str, Any]] = []
        if isinstance(reply, Response) and self._messages is not None:
            outputs = build_output(reply, self._redact)
        if self._shown or outputs:
            self._settings.record(span, context, {**self._shown, names.OUTPUTS: outputs})
        kind = None
        if not isinstance(reply, Response):
            kind = get_error_type(reply)
            self._settings.record_failure(context, reply, self._redact(str(reply)))
        if span.is_recording():
            span.set_attributes(self._build_facts(reply))
        self._end_inner(kind)

    @guard_episode
    def note_sample(self, bound: Bound, reply: Response, seconds: float) -> None:
        """Make the span of an answer to a server of tools, below that of the call."""
        name, kind, attributes = _describe_query(self._cell, bound.crystal, is_summary=True)
        attributes = {**attributes, names.SAMPLING: True, **build_usage_attributes(reply.usage, reply.metadata)}
        now = time.time_ns()
        span = self._settings.tracer.start_span(
            name, context=self._context, kind=kind, attributes=attributes, start_time=now - round(seconds * 1e9)
        )
        span.end(now)

    def _build_facts(self, reply: Response | CrystalError) -> dict[str, Any]:
        usage = reply.usage
        attributes: dict[str, Any] = {
            **build_usage_attributes(usage, reply.metadata if isinstance(reply, Response) else {}),
            names.ATTEMPTS: self._attempts,
        }
        if usage.cost:
            attributes[names.COST] = usage.cost
        if self._first_chunk is not None:
            attributes[names.FIRST_CHUNK] = self._first_chunk
        if isinstance(reply, Response):
            reason = reply.metadata.get("stop_reason")
            self._reasons = attributes[names.FINISH_REASONS] = [
                str(reason or ("tool_call" if reply.tool_calls else "stop"))
            ]
        return attributes

    @guard_episode
    def note_retry(self, failed: ProviderError, delay: float) -> None:
        """Add an event to the query's span."""
        self._attempts += 1
        if self._inner is not None:
            attributes: dict[str, Any] = {names.DELAY: delay, names.ERROR: get_error_type(failed)}
            if failed.status is not None:
                attributes[names.STATUS] = failed.status
            self._inner.span.add_event(names.RETRY_EVENT, attributes)

    def note_part(self, seconds: float) -> None:
        """Note when the first part of the answer arrived."""
        if self._first_chunk is None:
            self._first_chunk = seconds

    @guard_episode
    def note_computation(self, seconds: float, memory: int | None) -> None:
        """Note how long the program computed, and its memory."""
        if self._program is not None:
            self._program.span.set_attribute(names.COMPUTE, seconds)
            if memory is not None:
                self._program.span.set_attribute(names.MEMORY, memory)

    def _begin_gate(self, turn: str, gate: str, call: str, action: Action | None) -> None:
        self._checks = isinstance(action, Run) and action.checks
        if self._inner is not None:
            if self._call == call:
                return  # the steps around a gate belong to its span
            self._end_inner("cancelled")
        loaded = self._cell.plan.gates.get(gate)
        attributes: dict[str, Any] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL: gate,
            names.TOOL_CALL: call,
            names.TOOL_TYPE: get_tool_type(loaded),
        }
        if turn:
            attributes[names.TURN] = turn
        if loaded is None:  # the model invented the name
            attributes[names.TOOL] = gate = "_OTHER"
        else:
            if gate not in self._descriptions:
                self._descriptions[gate] = self._redact(loaded.description)
            attributes[names.TOOL_DESCRIPTION] = self._descriptions[gate]
            if loaded.server is not None:  # the SDK's span of the call is below this one
                attributes[names.MCP_METHOD] = get_method(self._cell, loaded)
                attributes[names.TRANSPORT] = getattr(loaded.server, "transport", "inproc")
            if loaded.wrappers:
                attributes[names.WRAPPERS] = [wrapper.name for wrapper in loaded.wrappers]
        self._inner = self._start(f"{names.EXECUTE_TOOL} {gate}", attributes, self._outer_context)
        self._call = call
        if self._settings.content_on_span and self._inner.span.is_recording():
            args = action.call.args if isinstance(action, Run | Contact | Spawn | Await) else None
            self._note_arguments(self._inner.span, args)

    def _begin_program(self, action: Compute) -> None:
        if self._program is not None:
            return
        medium = self._cell.plan.circle.medium_name
        attributes: dict[str, Any] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL: medium,
            names.TOOL_TYPE: "extension",
            names.MEDIUM: medium,
            names.REPLAYED: bool(action.answers) or action.midway is not None,
        }
        self._program = self._start(f"{names.EXECUTE_TOOL} {medium}", attributes, self._outer_context)

    def _end_program(self, kind: str | None) -> None:
        program, self._program = self._program, None
        _end(program, kind)

    def _end_inner(self, kind: str | None) -> None:
        inner, self._inner, self._call = self._inner, None, ""
        _end(inner, kind)


_AboutQuery = tuple[str, SpanKind, dict[str, Any]]
"""The common part of an episode's queries: the name and the kind of their spans, and attributes."""


def _describe_query(cell: Cell, crystal: Any, *, is_summary: bool) -> _AboutQuery:
    provider, model = names.split_crystal_name(get_crystal_name(crystal))
    is_workflow = getattr(crystal, "is_workflow", False)
    operation = names.PLAN if is_workflow else names.CHAT
    is_inside = is_workflow or hasattr(crystal, "respond")  # `local:` crystals speak to a server, too
    options = {} if is_summary else cell.plan.cantrip.call.sampling()
    attributes: dict[str, Any] = {
        names.OPERATION: operation,
        names.PROVIDER: provider,
        names.REQUEST_MODEL: model,
        names.CONVERSATION: cell.entity_id,
    }
    for name, attribute in names.SETTINGS.items():
        value = options.get(name)
        if isinstance(value, (str, int, float)):
            attributes[attribute] = value
        elif isinstance(value, (list, tuple)):
            attributes[attribute] = list(value)
    server, port = get_address(crystal)
    if server:
        attributes[names.SERVER], attributes[names.PORT] = server, int(port)
    return f"{operation} {model}", SpanKind.INTERNAL if is_inside else SpanKind.CLIENT, attributes


def _end(begun: _OpenSpan | None, kind: str | None) -> None:
    if begun is not None:
        if kind is not None:
            begun.span.set_attribute(names.ERROR, kind)
            begun.span.set_status(Status(StatusCode.ERROR))
        begun.span.end()


def _find_marked(result: Any) -> str | None:
    """Return the `error.type` of an observation that the runtime itself made of an interrupted gate."""
    text = result if isinstance(result, str) else ""
    if text.startswith("outcome unknown"):
        return OUTCOME_UNKNOWN
    if text.startswith("not run"):
        return "cancelled"
    return "timeout" if re.search(r"^\S+ timed out after [\d.e+]+ s$", text) else None


def find_error_type(result: Any) -> str:
    """Return the `error.type` of a gate's error observation: the class that the gate raised, or `tool_error`."""
    match = _RAISED.match(result) if isinstance(result, str) else None
    return "tool_error" if match is None else match[1]


def _crash_type(reason: ExitReason | None) -> str | None:
    return type(reason.exception).__name__ if isinstance(reason, Crash) else None


def find_parent(variables: ContextVariables, variable: ContextVar[Any], mail: str | None) -> otel.Context:
    """Return the context in which an episode begins: its caller's, else that of the intent's mail."""
    value_of_variable = next((value for key, value in variables if key is variable), None)
    context = otel.Context() if value_of_variable is None else value_of_variable
    remote = parse_traceparent(mail)
    if remote is None or trace.get_current_span(context).get_span_context().is_valid:
        return context
    return trace.set_span_in_context(trace.NonRecordingSpan(remote), context)


@contextmanager
def request_span(
    settings: TracingSettings, name: str, attributes: Mapping[str, str], traceparent: str | None, end: RequestEnd
) -> Iterator[None]:
    """Make a request the current span in this block, below the span that `traceparent` names.

    If the server is instrumented already, its span remains the current one. Use it in a plain coroutine.
    """
    span: Span | None = None
    remote = parse_traceparent(traceparent)
    parent = otel.Context() if remote is None else trace.set_span_in_context(trace.NonRecordingSpan(remote))
    if not trace.get_current_span().get_span_context().is_valid:
        present = {key: value for key, value in attributes.items() if value}
        start = partial(settings.tracer.start_span, name, parent, SpanKind.SERVER, present)
        span = attempt("a request is not traced", start)
    if span is None:
        yield
        return
    token = otel.attach(trace.set_span_in_context(span, parent))
    try:
        yield
    finally:
        otel.detach(token)
        if end.status:
            attempt("a request is not traced", partial(span.set_attribute, names.STATUS, end.status))
        attempt("a request is not traced", partial(_end, _OpenSpan(span, parent), end.error or None))


async def backfill(settings: TracingSettings, core: Tree, cell: Cell) -> None:
    """Export the spans of an entity that an earlier process began and did not end."""

    def build() -> list[RecordedSpan]:
        loom = core.loom
        header = loom.header(cell.entity_id)
        return build_spans(loom.records(cell.entity_id), header, find_parent_trace(loom, header))

    what = "spans of an earlier process are not exported"
    spans = await core.in_store(partial(attempt, what, build))
    attempt(what, partial(emit, settings, spans or ()))


def begin_spans(
    settings: TracingSettings, core: Tree, cell: Cell, state: State, mail: str | None, *, resumes: bool
) -> Spans | None:
    """Begin the spans of an episode; return None if nothing traces it."""
    before = parse_traceparent(state.episode.trace)
    links: list[Link] = []
    if before is not None:
        how = "resume" if resumes else "fork" if state.episode.number == 0 else "previous"
        attributes: dict[str, Any] = {names.LINK: how}
        if how == "fork" and cell.plan.parent_turn is not None:
            attributes[names.TURN] = cell.plan.parent_turn
        links.append(Link(before, attributes))
    spans = Spans(settings, core, cell, state, attempt=2 if resumes else 1)
    parent = find_parent(cell.context_variables, settings.variable, mail)
    return spans if attempt("an episode is not traced", lambda: spans.begin(parent, links)) else None
