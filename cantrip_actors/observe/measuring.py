"""Count the activity of a runtime: a fold of the written records, and facts that no record contains.

Turns, tokens, costs, gates, ends and approvals follow from the records that the loom's writer has written, so they
equal the loom. Restarts come from the supervisors' events, retries and chunks from the crystals. Gauges are read from
the runtime's own state.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from cantrip_actors.observe import names
from cantrip_actors.observe.counters import Count, Counters, Histogram, Labels
from cantrip_actors.observe.usage import read_modalities
from cantrip_actors.runtime.events.instrument import (
    Drawn,
    Fact,
    Fired,
    MailSettled,
    MailTaken,
    Reads,
    RenewedLate,
    Served,
    SessionEnded,
    StoreFailed,
    TakenOver,
)
from cantrip_actors.stream.events import (
    DecidedEvent,
    EntityEndedEvent,
    EntityEvent,
    EntityStartedEvent,
    FoldedEvent,
    RequestedEvent,
    SampledEvent,
    StepCompleteEvent,
    ToolResultEvent,
    UsageEvent,
)
from cantrip_actors.stream.reading import parse_time, read_events
from cantrip_actors.terms.crystal import get_crystal_name
from cantrip_actors.terms.errors import CrystalError, LoomError, ProviderError
from cantrip_actors.terms.messages import Response, Usage
from supervisors import Crash, Killed, Normal, inspect
from supervisors.events import DeadLetter, Event, Exited, GaveUpEvent, Started, StartFailedEvent, Zombie

if TYPE_CHECKING:
    from cantrip_actors.records.records import Record
    from cantrip_actors.runtime.entity.cell import Cell
    from cantrip_actors.runtime.nodes.membership import Membership
    from cantrip_actors.runtime.tree import Tree
    from cantrip_actors.terms.gate import Gate

QUEUE = 256
"""The number of writes that are counted together, at a third of the cost of counting each."""

USED = "gen_ai.client.inference.usage."

_BREAKER = {"closed": 0, "half-open": 1, "open": 2}

_REASONS: Mapping[type, str] = {Crash: "crash", Killed: "killed", Normal: "normal"}
"""Names of exit reasons; all others are shutdowns."""

ROLES = frozenset(
    {"root", "runtime", "loom", "crystals", "servers", "entities", "registry", "mail", "scheduler", "retention", "node"}
    | {"circle", "connection"}
)
"""The ids of actors that are the same in every runtime."""


@dataclass(slots=True, eq=False)
class _About:
    """The values of an entity's labels, and the series that it has used."""

    cantrip: str = ""
    provider: str = ""
    model: str = ""
    server: str = ""
    port: str = ""
    tenant: str = ""
    gates: Container[str] = ()
    methods: Mapping[str, str] = field(default_factory=dict)
    """The protocol's method for each gate that is a tool of a server."""
    is_workflow: bool = False
    summariser: tuple[str, str] | None = None
    """The provider and the model of its summaries, if another crystal than its own writes them."""
    queries: dict[str, tuple[Histogram, Histogram, Histogram]] = field(default_factory=dict)
    """By the model that answered: durations, prompt tokens, answer tokens."""
    used: dict[str | tuple[str, str], tuple[Count, Count, Count]] = field(default_factory=dict)
    """By the model that answered, or by another crystal's provider and model: tokens of prompts and answers, and those
    read from a cache."""
    tools: dict[tuple[str, bool], Histogram] = field(default_factory=dict)
    """By gate, and whether it failed."""
    turns: Count | None = None


@dataclass(slots=True, eq=False)
class _Episode:
    """An episode that began in this process: its beginning, and its calls so far."""

    began: float
    queries: int = 0
    tools: int = 0


class Measuring:
    """Counts what one runtime does. `legacy` also counts by the names of earlier conventions."""

    def __init__(self, counters: Counters, *, legacy: bool = False, by_tenant: bool = False) -> None:
        self._counters = counters
        self._legacy = legacy
        self._by_tenant = by_tenant
        self._core: Tree | None = None
        self._store = ""
        self._abouts: dict[str, _About] = {}
        self._episodes: dict[str, _Episode] = {}
        self._queue: list[Sequence[Record]] = []
        self._lock = threading.RLock()
        self._is_flushing = False
        self._folded: list[Histogram] = []
        """The series that keep values until the next flush."""
        self._counting: dict[type[EntityEvent], Callable[[Any], None]] = {
            EntityStartedEvent: self._begin_episode,
            UsageEvent: self._count_utterance,
            ToolResultEvent: self._count_gate,
            StepCompleteEvent: self._count_turn,
            FoldedEvent: self._count_fold,
            SampledEvent: self._count_sample,
            RequestedEvent: self._note_request,
            DecidedEvent: self._count_decision,
            EntityEndedEvent: self._count_close,
        }
        counters.call_before_reading(self.flush)
        self._pending: dict[str, tuple[str, float]] = {}
        """For each entity that waits for a person: the gate, and the time of the request."""
        self._asking: dict[str, None] = {}
        """The gates for which a person was asked, the first one first: their gauge falls to 0 and does not vanish."""
        self._readers = {"openai": 0, "acp": 0, "mcp": 0}
        """The readers of event streams by dialect; `cantrip serve` adds those of its own dialect."""
        self._turns: dict[str, float] = {}
        """For each entity: the seconds that the query and the gates of its turn took so far."""

    @property
    def core(self) -> Tree:
        """The runtime that is measured."""
        assert self._core is not None, "a runtime attaches itself before it does anything else"
        return self._core

    def attach(self, core: Tree) -> None:
        """Count the events of a runtime. Raises ValueError if another open one is counted."""
        if self._core is not None and self._core.is_open:
            raise ValueError("telemetry: it observes another runtime that is open: make a Telemetry for each")
        if self._core is None:
            self._counters.read_gauges_of(self._read_gauges)
        self._core, self._store = core, core.store_kind
        self._commits = self._get_histogram("cantrip.loom.commit.duration", (self._store,))
        self._batches = self._get_histogram("cantrip.loom.batch", (self._store,))
        self._records = self._counters.count("cantrip.loom.records", (self._store,))
        self._bytes = self._counters.count("cantrip.loom.bytes", (self._store,))
        self._overhead = self._get_histogram("cantrip.turn.overhead")
        self._pending.clear()
        for request in core.requests.list_entity_requests(None):
            assert request.entity is not None, "a request without an entity is a dispatch's"
            self._pending[request.entity] = (request.gate, parse_time(request.asked_at) or 0.0)
            self._asking[request.gate] = None

    # Records

    def count_records(self, records: Sequence[Record]) -> None:
        """Count written records; soon, or at the next reading."""
        self._queue.append(records)
        if len(self._queue) >= QUEUE:
            self.flush()

    def count_commit(self, seconds: float, messages: int) -> None:
        """Count a commit of the loom's writer."""
        self._commits.add_later(seconds)
        self._batches.add_later(messages)

    def flush(self) -> None:
        """Count the waiting values. Any thread may call it, and a signal handler while this thread counts."""
        with self._lock:
            if self._is_flushing:
                return
            self._is_flushing = True
            try:
                self._flush()
            finally:
                self._is_flushing = False

    def _flush(self) -> None:
        queue, self._queue = self._queue, []
        for records in queue:
            self._records.value += len(records)
            for event in read_events(records):
                count = self._counting.get(type(event))
                if count is not None:
                    count(event)
        for series in self._folded:
            series.fold()
        if self._core is not None:
            self._bytes.value = self._core.store.written

    def _get_histogram(self, name: str, labels: Labels = ()) -> Histogram:
        """Return a series that keeps its values until the next flush."""
        histogram = self._counters.get_histogram(name, labels)
        if histogram not in self._folded:
            self._folded.append(histogram)
        return histogram

    def _begin_episode(self, event: EntityStartedEvent) -> None:
        self._episodes[event.entity_id] = _Episode(event.at)
        self._turns[event.entity_id] = 0.0

    def _count_decision(self, event: DecidedEvent) -> None:
        gate, asked_at = self._pending.pop(event.entity_id, ("", 0.0))
        if asked_at:
            labels = (self._name_gate(event.entity_id, gate), event.decision)
            self._counters.observe("cantrip.approval.wait", labels, max(0.0, event.at - asked_at))

    def _note_request(self, event: RequestedEvent) -> None:
        self._pending[event.entity_id] = (event.gate, event.at)
        self._asking[event.gate] = None

    def _count_fold(self, event: FoldedEvent) -> None:
        self._use(event.entity_id, event.usage, "", {}, self._find_about(event.entity_id).summariser)

    def _count_sample(self, event: SampledEvent) -> None:
        self._use(event.entity_id, event.usage, "", {}, names.split_crystal_name(event.crystal))

    def _count_close(self, event: EntityEndedEvent) -> None:
        self._use(event.entity_id, event.usage, "", {})
        if event.reason not in ("terminated", "truncated"):  # those are counted with their turns
            self._count_end(event, event.reason, is_error=event.reason == "failed")

    def _count_utterance(self, event: UsageEvent) -> None:
        model = event.metadata.get("model")
        self._use(event.entity_id, event.usage, model if isinstance(model, str) else "", event.metadata)
        episode = self._episodes.get(event.entity_id)
        if episode is not None:
            episode.queries += 1
        self._turns[event.entity_id] = event.seconds

    def _use(
        self, entity_id: str, usage: Usage, model: str, metadata: Any, other: tuple[str, str] | None = None
    ) -> None:
        """Count the tokens of an answer by the entity's crystal, or by another one of this provider and model."""
        if not usage.total_tokens and not usage.cost:
            return
        about = self._find_about(entity_id)
        counters = self._counters
        provider, requested_model = other or (about.provider, about.model)
        used = about.used.get(other or model)
        if used is None:
            labels = (names.CHAT, provider, requested_model, model, "unknown")
            parts = ("input_tokens", "output_tokens", "cache_read.input_tokens")
            first, second, third = (counters.count(USED + part, labels) for part in parts)
            used = about.used[other or model] = (first, second, third)
        prompts, answers, cached = used
        if "modality_tokens" in metadata:
            labels_of_chat = (names.CHAT, provider, requested_model, model)
            prompts.value += self._use_by_modality("input", usage.prompt_tokens, metadata, labels_of_chat)
            answers.value += self._use_by_modality("output", usage.completion_tokens, metadata, labels_of_chat)
        else:
            prompts.value += usage.prompt_tokens
            answers.value += usage.completion_tokens
        cached.value += usage.cached_tokens
        for name, key in (("cache_write.input", "cache_written_tokens"), ("reasoning.output", "reasoning_tokens")):
            if metadata.get(key):
                labels = (names.CHAT, provider, requested_model, model, "unknown")
                counters.add(f"{USED}{name}_tokens", labels, metadata[key])
        if usage.cost:
            counters.add("cantrip.cost.usd", (requested_model, about.cantrip, *self._get_tenant(about)), usage.cost)

    def _use_by_modality(self, side: str, total: int, metadata: Any, labels: Labels) -> int:
        """Count the tokens whose modality the provider says; return how many others there are."""
        counts = read_modalities(metadata, side)
        rest = total - sum(counts.values())
        if rest < 0:  # they contradict the bill
            return total
        for modality, count in counts.items():
            self._counters.add(f"{USED}{side}_tokens", (*labels, modality), count)
        return rest

    def _get_tenant(self, about: _About) -> Labels:
        return (about.tenant,) if self._by_tenant else ()

    def _count_gate(self, ran: ToolResultEvent) -> None:
        entity_id = ran.entity_id
        self._turns[entity_id] = self._turns.get(entity_id, 0.0) + ran.seconds
        if ran.tool_call_id is None:
            self._counters.observe("cantrip.sandbox.duration", (ran.gate,), ran.seconds)
            limit = ran.result.get("limit") if isinstance(ran.result, dict) else None
            if limit is not None:
                self._counters.add("cantrip.sandbox.killed", (ran.gate, str(limit)))
            return
        episode = self._episodes.get(entity_id)
        if episode is not None:
            episode.tools += 1
        about = self._find_about(entity_id)
        series = about.tools.get((ran.gate, ran.is_error))
        if series is None:
            kind = get_tool_type(about.gates.get(ran.gate) if isinstance(about.gates, Mapping) else None)
            labels = (self._name_gate(entity_id, ran.gate), kind, "tool_error" if ran.is_error else "")
            series = about.tools[ran.gate, ran.is_error] = self._get_histogram("gen_ai.execute_tool.duration", labels)
        series.add_later(ran.seconds)
        method = about.methods.get(ran.gate)
        if method is not None:
            labels = (method, ran.gate, "tool_error" if ran.is_error else "")
            self._counters.observe("mcp.client.operation.duration", labels, ran.seconds)

    def _count_turn(self, event: StepCompleteEvent) -> None:
        about = self._find_about(event.entity_id)
        if about.turns is None:
            about.turns = self._counters.count("cantrip.turns", (about.cantrip, *self._get_tenant(about)))
        about.turns.value += 1
        spent = self._turns.pop(event.entity_id, 0.0)
        self._overhead.add_later(max(0.0, event.seconds - spent))
        if event.terminated or event.truncated:
            self._count_end(event, "terminated" if event.terminated else "truncated", is_error=False)

    def _count_end(self, event: StepCompleteEvent | EntityEndedEvent, reason: str, *, is_error: bool) -> None:
        entity_id = event.entity_id
        episode = self._episodes.pop(entity_id, None)
        self._turns.pop(entity_id, None)
        about = self._find_about(entity_id)
        ward = (event.ward or "").partition("(")[0]
        self._counters.add("cantrip.entity.ends", (reason, ward, *self._get_tenant(about)))
        self._pending.pop(entity_id, None)
        if episode is not None:
            agent, error = about.cantrip, "_OTHER" if is_error else ""
            kind = "workflow" if about.is_workflow else "agent"
            seconds = max(0.0, event.at - episode.began)
            self._counters.observe(f"gen_ai.invoke_{kind}.duration", (agent, error), seconds)
            if not about.is_workflow:
                self._counters.observe("gen_ai.invoke_agent.inference_calls", (agent,), episode.queries)
                self._counters.observe("gen_ai.invoke_agent.tool_calls", (agent,), episode.tools)
        self._abouts.pop(entity_id, None)

    def _find_about(self, entity_id: str) -> _About:
        about = self._abouts.get(entity_id)
        if about is None:
            about = self._abouts[entity_id] = self._find(entity_id)
        return about

    def _find(self, entity_id: str) -> _About:
        cell = self.core.living.get(entity_id)
        if cell is not None:
            return _describe_cell(cell)
        try:
            header = self.core.loom.header(entity_id)
        except LoomError:
            return _About()
        gates = {
            entry.get("name", "") if isinstance(entry, dict) else entry for entry in header.circle.get("gates", ())
        }
        return _About(
            header.cantrip_name or "", *names.split_crystal_name(header.crystal), "", "", header.tenant, gates
        )

    def _name_gate(self, entity_id: str, gate: str) -> str:
        """Return the name of a gate; `_OTHER` for one that the model invented."""
        return gate if gate in self._find_about(entity_id).gates else "_OTHER"

    # Queries

    def count_answer(self, cell: Cell, crystal: Any, reply: Response | CrystalError, seconds: float) -> None:
        """Count a query to a crystal: how long it took, and its tokens."""
        usage = reply.usage
        if isinstance(reply, Response) and not self._legacy and crystal is cell.crystal.crystal:
            about = self._find_about(cell.entity_id)
            model = reply.metadata.get("model", "")
            series = about.queries.get(model)
            if series is None:
                series = about.queries[model] = self._get_series(self._label_query(cell, crystal, reply), "")
        else:
            labels = self._label_query(cell, crystal, reply)
            series = self._get_series(labels, "" if isinstance(reply, Response) else get_error_type(reply))
            if not isinstance(reply, Response) and not usage.total_tokens:  # a failed call counts as 0 tokens
                for part in ("input_tokens", "output_tokens"):
                    self._counters.count(USED + part, (*labels[:3], "", "unknown"))
        durations, prompts, answers = series
        durations.add_later(seconds)
        prompts.add_later(usage.prompt_tokens)
        answers.add_later(usage.completion_tokens)
        if self._legacy:
            error = "" if isinstance(reply, Response) else get_error_type(reply)
            labels, counters = self._label_query(cell, crystal, reply)[:3], self._counters
            counters.observe("gen_ai.client.operation.duration", (*labels, error), seconds)
            counters.observe("gen_ai.client.token.usage", (*labels, "input"), usage.prompt_tokens)
            counters.observe("gen_ai.client.token.usage", (*labels, "output"), usage.completion_tokens)

    def _get_series(self, labels: Labels, error: str) -> tuple[Histogram, Histogram, Histogram]:
        return (
            self._get_histogram("gen_ai.client.inference.duration", (*labels, error)),
            self._get_histogram("gen_ai.client.inference.operation.input_tokens", labels),
            self._get_histogram("gen_ai.client.inference.operation.output_tokens", labels),
        )

    def count_part(self, cell: Cell, seconds: float, since_last: float | None) -> None:
        """Count a part of an answer: the seconds since the query began, and since the part before."""
        name = "time_to_first_chunk" if since_last is None else "time_per_output_chunk"
        labels = self._label_query(cell, cell.crystal.crystal, None)
        self._counters.observe(f"gen_ai.client.inference.{name}", labels, seconds if since_last is None else since_last)

    def count_retry(self, crystal: Any, failed: ProviderError) -> None:
        """Count a failed attempt that will be retried."""
        status = "" if failed.status is None else str(failed.status)
        self._counters.add("cantrip.crystal.retries", (get_crystal_name(crystal), status))

    def count_resumed(self) -> None:
        """Count an episode that another process had begun."""
        self._counters.add("cantrip.entity.resumed")

    def _label_query(self, cell: Cell, crystal: Any, reply: Response | CrystalError | None) -> Labels:
        model = reply.metadata.get("model") if isinstance(reply, Response) else None
        answered = model if isinstance(model, str) else ""
        if crystal is not cell.crystal.crystal:
            crystal_name = get_crystal_name(crystal)
            return (names.CHAT, *names.split_crystal_name(crystal_name), answered, *get_address(crystal))
        about = self._find_about(cell.entity_id)
        return (names.CHAT, about.provider, about.model, answered, about.server, about.port)

    # Supervision

    def count_event(self, event: Event) -> None:
        """Count an event of the supervisors."""
        more: Labels = ()
        match event:
            case Started() if event.restarts:
                name = "restarts"
            case Exited(expected=False):
                name, more = "crashes", (_REASONS.get(type(event.reason), "shutdown"),)
            case GaveUpEvent():
                name = "gave_up"
            case Zombie():
                name = "zombies"
            case StartFailedEvent(expected=False) if event.reason is not None:
                name = "failed_starts"
            case DeadLetter():
                name = "dead_letters"
            case _:
                return
        path = event.ref.path
        kind = _find_kind(path.rpartition("/")[2] if isinstance(event, DeadLetter) else event.spec.id, path)
        self._counters.add(f"cantrip.supervisor.{name}", (kind, *more))

    # Mail, timers, nodes and the store

    def count_fact(self, fact: Fact) -> None:
        """Count a fact that no record contains."""
        counters = self._counters
        match fact:
            case MailTaken():
                counters.observe("cantrip.mail.wait", (fact.kind,), _measure_seconds(fact.sent, fact.at))
            case MailSettled():
                counters.observe("cantrip.mail.duration", (), _measure_seconds(fact.sent, fact.at))
            case TakenOver():
                counters.add("cantrip.node.takeovers", (), fact.entities)
            case RenewedLate():
                counters.add("cantrip.node.late_renewals", (), fact.times)
            case StoreFailed():
                counters.add("cantrip.loom.failures", (self._store, "fenced" if fact.is_fenced else "unreachable"))
            case SessionEnded():
                counters.observe("mcp.client.session.duration", (), fact.seconds)
            case Served():
                counters.observe("mcp.server.operation.duration", (fact.method, fact.tool, fact.error), fact.seconds)
            case Fired():
                counters.observe("cantrip.timer.lateness", (), fact.seconds)
            case Reads():
                self._readers[fact.dialect] += -1 if fact.has_left else 1
                if fact.fell_behind:
                    counters.add("cantrip.streams.dropped", (fact.dialect,))
            case Drawn():
                counters.add("cantrip.limits.draws", (fact.limits, "refused" if fact.is_refused else "drawn"))

    # Gauges

    def _read_gauges(self) -> Iterator[tuple[str, Labels, float]]:
        core = self._core
        if core is None or not core.is_open:
            return
        yield from _read_actor_gauges(core)
        states = {"running": 0, "waiting": 0, "idle": 0}
        for cell in core.living:
            states["waiting" if cell.life.waits_for else "running" if cell.episode is not None else "idle"] += 1
        for state, count in states.items():
            yield "cantrip.entities", (state,), count
        yield "cantrip.entities.quarantined", (), len(core.living.quarantined)
        yield "cantrip.loom.backlog", (self._store,), core.writer.mailbox_depth
        pending = Counter(gate for gate, _ in list(self._pending.values()))
        for gate in list(self._asking) or [""]:  # a gauge that vanishes cannot be alarmed on
            yield "cantrip.approvals.pending", (gate,), pending[gate]
        for dialect, count in self._readers.items():
            yield "cantrip.streams", (dialect,), count
        for status in core.crystals.get_status(core.system.now()):
            labels = (status.name,)
            yield "cantrip.crystal.running", labels, status.running
            yield "cantrip.crystal.waiting", labels, status.waiting
            yield "cantrip.crystal.paused", labels, status.paused_for
            yield "cantrip.crystal.breaker", labels, _BREAKER.get(status.breaker, 1)
        for queue in core.scheduler.queues.status:
            yield "cantrip.queue.waiting", (queue.name,), queue.waiting
            yield "cantrip.queue.running", (queue.name,), queue.running
        if core.membership is not None:
            yield from _read_node_gauges(core.membership, core.living)


def _read_node_gauges(ours: Membership, loaded: Iterable[Cell]) -> Iterator[tuple[str, Labels, float]]:
    unowned = ours.unowned
    draining = sum(node.is_draining for node in ours.members)
    yield "cantrip.node.entities", (), sum(cell.parent is None for cell in loaded)
    yield "cantrip.node.busy", (), ours.busy
    yield "cantrip.node.capacity", (), ours.node.capacity
    yield "cantrip.cluster.nodes", ("draining",), draining
    yield "cantrip.cluster.nodes", ("living",), len(ours.members) - draining
    yield "cantrip.cluster.unowned", (), unowned.waiting
    yield "cantrip.cluster.unowned.longest", (), unowned.longest
    yield "cantrip.cluster.stranded", (), unowned.stranded
    yield "cantrip.cluster.quarantined", (), unowned.quarantined


def _read_actor_gauges(core: Tree) -> Iterator[tuple[str, Labels, float]]:
    counts: dict[tuple[str, str], int] = {}
    most: dict[str, int] = {}
    total: dict[str, int] = {}
    for node in inspect.build_tree(core.system).walk():
        kind = _find_kind(node.id, node.path)
        counts[kind, node.state] = counts.get((kind, node.state), 0) + 1
        most[kind] = max(most.get(kind, 0), node.mailbox)
        total[kind] = total.get(kind, 0) + node.mailbox
    for labels, count in counts.items():
        yield "cantrip.actors", labels, count
    for kind, deepest in most.items():
        yield "cantrip.mailbox.depth", (kind, "max"), deepest
        yield "cantrip.mailbox.depth", (kind, "sum"), total[kind]


def _describe_cell(cell: Cell) -> _About:
    plan = cell.plan
    names_of_crystal = names.split_crystal_name(get_crystal_name(plan.cantrip.crystal))
    server, port = get_address(cell.crystal.crystal)
    about = _About(plan.cantrip.name or "", *names_of_crystal, server, port, plan.tenant, plan.gates)
    other = cell.crystal.summariser
    if other is not None and other.crystal is not cell.crystal.crystal:
        about.summariser = names.split_crystal_name(get_crystal_name(other.crystal))
    about.is_workflow = getattr(plan.cantrip.crystal, "is_workflow", False)
    if plan.cantrip.circle.servers:
        about.methods = {name: get_method(cell, gate) for name, gate in plan.gates.items() if gate.server is not None}
    return about


def get_address(crystal: Any) -> tuple[str, str]:
    """Return the host and the port of a crystal's provider; empty texts if it has none."""
    address = getattr(crystal, "address", None)
    parts = urlsplit(address if isinstance(address, str) else "")
    return parts.hostname or "", str(parts.port or (443 if parts.scheme == "https" else 80 if parts.scheme else ""))


def get_tool_type(gate: Gate | None) -> str:
    """Return the `gen_ai.tool.type` of a gate: a tool of a server, one that looks into files, or a function."""
    if gate is None:
        return "function"
    if gate.server is not None:
        return "extension"
    is_ours = getattr(gate.function, "__module__", None) == "cantrip_actors.circle.gates.files"
    return "datastore" if is_ours and gate.read_only else "function"


def get_method(cell: Cell, gate: Gate) -> str:
    """Return what the server of a gate is asked with: a call of a tool, or a question about its resources."""
    listed = None if gate.server is None else cell.plan.cantrip.circle.listed.get(gate.server.name)
    tools = () if listed is None else listed.tools
    kinds = (tool.kind for tool in tools if gate.name.endswith(f"__{tool.name}"))
    return names.TOOL_METHODS[next(kinds, "tool")]


def _find_kind(id: object, path: str) -> str:
    """Return the role of an actor: its id, unless that names an entity, a crystal or a server of tools."""
    if id in ROLES:
        return str(id)
    return "crystal" if "/crystals/" in path else "server" if "/servers/" in path else "entity"


def _measure_seconds(since: str, until: str) -> float:
    try:
        return max(0.0, (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds())
    except ValueError:
        return 0.0


def get_error_type(error: BaseException) -> str:
    """Return the `error.type` of an exception: its HTTP status, or its class."""
    status = getattr(error, "status", None)
    if isinstance(status, int):
        return str(status)
    if isinstance(error, ProviderError) and "(deadline)" in str(error):
        return "timeout"
    return type(error).__name__
