"""The table of metrics: names, kinds, units, attributes and buckets.

Exporters add the unit to a name that does not end in it. Series of counters that are known beforehand exist from the
start, with 0: a reader that first sees a 1 takes it for no increase.

The standard ones are those of the GenAI conventions; ours begin with `cantrip.`. Attributes come from closed sets or
from the author of the cantrip: no series names an entity, an intent or a user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

from cantrip_actors.observe import names
from cantrip_actors.terms.outcome import EndReason

MetricKind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One metric. `unit` is in UCUM; `buckets` are the upper bounds of a histogram."""

    name: str
    kind: MetricKind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    from_start: tuple[tuple[str, ...], ...] = ()
    """The labels of the series that exist from the start."""

    @property
    def prometheus(self) -> str:
        """Its name on the page of Prometheus, without the suffixes of samples."""
        name = self.name.replace(".", "_").replace("-", "_")
        unit = {"s": "_seconds", "By": "_bytes"}.get(self.unit, "")
        return f"{name.removesuffix(unit)}{unit}{'_total' if self.kind == 'counter' else ''}"


SECONDS: Final = tuple(0.01 * 2**n for n in range(14))
TOKENS: Final = tuple(float(4**n) for n in range(14))
EPISODE: Final = tuple(0.1 * 2**n for n in range(13))
CALLS: Final = tuple(float(2**n) for n in range(8))
WAITS: Final = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0, 604800.0)
WORKFLOW: Final = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0)
MCP: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
HTTP: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
FAST: Final = tuple(0.0001 * 2**n for n in range(14))

TENANT: Final = "cantrip.tenant"
"""The label that `tenant_metrics=True` adds."""

_QUERY: Final = (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL, names.RESPONSE_MODEL, names.SERVER, names.PORT)
_MCP: Final = (names.MCP_METHOD, names.TOOL, names.ERROR)
_HTTP: Final = (names.HTTP_METHOD, names.ROUTE, names.STATUS, names.SCHEME, names.ERROR)
_USAGE: Final = (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL, names.RESPONSE_MODEL, names.MODALITY)
_INFERENCE: Final = "gen_ai.client.inference"


def _counter(name: str, what: str, *labels: str, unit: str = "1") -> Metric:
    return Metric(name, "counter", unit, what, labels)


def _tokens(part: str, what: str) -> Metric:
    return _counter(f"{_INFERENCE}.usage.{part}", what, *_USAGE, unit="{token}")


def _gauge(name: str, what: str, *labels: str, unit: str = "1") -> Metric:
    return Metric(name, "gauge", unit, what, labels)


def _histogram(name: str, what: str, buckets: tuple[float, ...], *labels: str, unit: str = "s") -> Metric:
    return Metric(name, "histogram", unit, what, labels, buckets)


_ALL: Final = (
    _histogram(f"{_INFERENCE}.duration", "Time of a query, all its attempts.", SECONDS, *_QUERY, names.ERROR),
    _histogram(f"{_INFERENCE}.time_to_first_chunk", "Time to the first part of an answer.", SECONDS, *_QUERY),
    _histogram(f"{_INFERENCE}.time_per_output_chunk", "Time between parts of an answer.", SECONDS, *_QUERY),
    _tokens("input_tokens", "Billed tokens of prompts, cached ones included."),
    _tokens("output_tokens", "Billed tokens of answers, reasoning included."),
    _tokens("cache_read.input_tokens", "Of the prompts, tokens read from a cache."),
    _tokens("cache_write.input_tokens", "Of the prompts, tokens written to a cache."),
    _tokens("reasoning.output_tokens", "Of the answers, tokens of reasoning."),
    _histogram(f"{_INFERENCE}.operation.input_tokens", "Prompt tokens of a query.", TOKENS, *_QUERY, unit="{token}"),
    _histogram(f"{_INFERENCE}.operation.output_tokens", "Answer tokens of a query.", TOKENS, *_QUERY, unit="{token}"),
    _histogram("gen_ai.invoke_agent.duration", "Time of an episode.", EPISODE, names.AGENT, names.ERROR),
    _histogram(
        "gen_ai.invoke_agent.inference_calls", "Queries of an episode.", CALLS, names.AGENT, unit="{inference_call}"
    ),
    _histogram("gen_ai.invoke_agent.tool_calls", "Gate calls of an episode.", CALLS, names.AGENT, unit="{tool_call}"),
    _histogram(
        "gen_ai.execute_tool.duration", "Time of a gate call.", SECONDS, names.TOOL, names.TOOL_TYPE, names.ERROR
    ),
    _histogram("gen_ai.invoke_workflow.duration", "Time of a controller's run.", WORKFLOW, names.WORKFLOW, names.ERROR),
    _histogram(names.HTTP_DURATION, "Time of a request to the service, until its answer ends.", HTTP, *_HTTP),
    _histogram("mcp.client.operation.duration", "Time of a call of a server's tool.", MCP, *_MCP),
    _histogram("mcp.server.operation.duration", "Time of a request of an MCP client.", MCP, *_MCP),
    _histogram("mcp.client.session.duration", "Time of a connection to a server of tools.", MCP),
    _counter("cantrip.supervisor.restarts", "Restarts of actors.", "kind"),
    _counter("cantrip.supervisor.crashes", "Ends of actors that were not requested.", "kind", "reason"),
    _counter("cantrip.supervisor.gave_up", "Supervisors that ended because of too many restarts.", "kind"),
    _counter("cantrip.supervisor.zombies", "Actors that could not be ended.", "kind"),
    _counter("cantrip.supervisor.dead_letters", "Messages that no actor handled.", "kind"),
    _counter("cantrip.supervisor.failed_starts", "Actors that failed to start.", "kind"),
    _gauge("cantrip.actors", "Actors, as they are now.", "kind", "state"),
    _gauge("cantrip.mailbox.depth", "Messages that wait: the most of one actor, and all.", "kind", "stat"),
    _gauge("cantrip.entities", "Loaded entities, as they are now.", "state"),
    _gauge("cantrip.entities.quarantined", "Entities that this process found in quarantine."),
    _counter("cantrip.entity.ends", "Ends of episodes.", "reason", "ward"),
    _counter("cantrip.entity.resumed", "Episodes that another process had begun."),
    _counter("cantrip.turns", "Committed turns.", names.AGENT),
    _histogram("cantrip.turn.overhead", "Time of a turn without its query and its gates.", FAST),
    _histogram("cantrip.loom.commit.duration", "Time of a group commit.", FAST, "store"),
    _histogram("cantrip.loom.batch", "Messages of a group commit.", TOKENS[:6], "store", unit="1"),
    _counter("cantrip.loom.records", "Records written.", "store"),
    _counter("cantrip.loom.bytes", "Bytes of the records written.", "store", unit="By"),
    _gauge("cantrip.loom.backlog", "Messages that wait for the writer.", "store"),
    _counter("cantrip.crystal.retries", "Attempts that failed and were made again.", "crystal", "status"),
    _gauge("cantrip.crystal.running", "Requests that are with the provider.", "crystal"),
    _gauge("cantrip.crystal.waiting", "Requests that wait for their turn.", "crystal"),
    _gauge("cantrip.crystal.paused", "For how long no request begins.", "crystal", unit="s"),
    _gauge("cantrip.crystal.breaker", "0 closed, 1 half open, 2 open.", "crystal"),
    _counter("cantrip.cost.usd", "The cost of queries.", "model", "cantrip", unit="{usd}"),
    _gauge("cantrip.approvals.pending", "Requests that wait for a person.", "gate"),
    _histogram("cantrip.approval.wait", "Time until a request is decided.", WAITS, "gate", "decision"),
    _histogram("cantrip.sandbox.duration", "Time of a program.", SECONDS, "medium"),
    _counter("cantrip.sandbox.killed", "Programs that exceeded a limit.", "medium", "limit"),
    _gauge("cantrip.streams", "Readers of event streams.", "dialect"),
    _counter("cantrip.streams.dropped", "Readers that fell behind.", "dialect"),
    _histogram("cantrip.loop.lag", "Lateness of a timer of one second.", FAST),
    _counter("cantrip.loom.failures", "What the store refused or did not do.", "store", "why"),
    _histogram("cantrip.mail.wait", "Time from sending mail to taking it.", EPISODE, "kind"),
    _histogram("cantrip.mail.duration", "Time from sending an intent to its episode's end.", EPISODE),
    _histogram("cantrip.timer.lateness", "Time from when a timer is due to when it fires.", SECONDS),
    _counter("cantrip.limits.draws", "Slices of limits that processes share.", "limits", "outcome"),
    _gauge("cantrip.node.entities", "Root entities that this node has loaded."),
    _gauge("cantrip.node.busy", "Root entities at work here."),
    _gauge("cantrip.node.capacity", "Root entities that may be at work here."),
    _counter("cantrip.node.takeovers", "Entities without an owner that this node took."),
    _counter("cantrip.node.late_renewals", "Renewals that came after half of the ttl."),
    _gauge("cantrip.cluster.nodes", "Nodes, as this one sees them.", "state"),
    _gauge("cantrip.cluster.unowned", "Entities that have work and no owner."),
    _gauge("cantrip.cluster.unowned.longest", "For how long the first of them has had none.", unit="s"),
    _gauge("cantrip.cluster.stranded", "Entities that have work and that no living node can run."),
    _gauge("cantrip.cluster.quarantined", "Entities whose nodes died again and again."),
    _gauge("cantrip.queue.waiting", "Submissions that wait in a queue.", "queue"),
    _gauge("cantrip.queue.running", "Entities that have a place in a queue.", "queue"),
)

LEGACY: Final = (
    _histogram(
        "gen_ai.client.token.usage",
        "Tokens of a query, by the older name.",
        TOKENS,
        names.OPERATION,
        names.PROVIDER,
        names.REQUEST_MODEL,
        "gen_ai.token.type",
        unit="{token}",
    ),
    _histogram(
        "gen_ai.client.operation.duration",
        "Time of a query, by the older name.",
        SECONDS,
        names.OPERATION,
        names.PROVIDER,
        names.REQUEST_MODEL,
        names.ERROR,
    ),
)
"""The metrics for dashboards of earlier conventions, with `legacy=True`."""

PER_TENANT: Final = ("cantrip.turns", "cantrip.cost.usd", "cantrip.entity.ends")
"""The metrics that `tenant_metrics=True` counts by tenant."""

_ROLES: Final = ("entity", "circle", "crystal", "loom", "mail", "scheduler", "registry", "node")
"""The kinds of actors whose crashes are rated."""

_FROM_START: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    **{
        f"cantrip.supervisor.{what}": tuple((role,) for role in _ROLES)
        for what in ("restarts", "gave_up", "zombies", "failed_starts")
    },
    "cantrip.supervisor.crashes": tuple((role, "crash") for role in _ROLES),
    "cantrip.entity.ends": tuple((reason, "") for reason in get_args(EndReason)),
    "cantrip.streams.dropped": tuple((dialect,) for dialect in ("native", "openai", "acp", "mcp")),
}


def _is_known_from_start(metric: Metric) -> bool:
    """Return whether every process has the one series of a counter; only nodes of a cluster have those of nodes."""
    return metric.kind == "counter" and not metric.labels and not metric.name.startswith("cantrip.node.")


METRICS: Final = {
    metric.name: metric._replace(from_start=_FROM_START.get(metric.name, ((),) if _is_known_from_start(metric) else ()))
    for metric in _ALL
}
