"""The table of metrics: names, kinds, units, attributes and buckets.

The standard ones are those of the GenAI conventions; ours begin with `cantrip.`. Attributes come from closed sets or
from the author of the cantrip: no series names an entity, an intent or a user.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from cantrip_actors.observe import names

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One metric. `unit` is in UCUM; `buckets` are the upper bounds of a histogram."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """Its name on the page of Prometheus, without the suffixes of samples."""
        name = self.name.replace(".", "_").replace("-", "_")
        unit = {"s": "_seconds", "By": "_bytes"}.get(self.unit, "")
        return f"{name}{unit}{'_total' if self.kind == 'counter' else ''}"


SECONDS: Final = tuple(0.01 * 2**n for n in range(14))
TOKENS: Final = tuple(float(4**n) for n in range(14))
EPISODE: Final = tuple(0.1 * 2**n for n in range(13))
CALLS: Final = tuple(float(2**n) for n in range(8))
WAITS: Final = (1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0, 604800.0)
WORKFLOW: Final = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0)
MCP: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
FAST: Final = tuple(0.0001 * 2**n for n in range(14))

TENANT: Final = "cantrip.tenant"
"""The label that `tenant_metrics=True` adds."""

_QUERY: Final = (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL, names.RESPONSE_MODEL, names.SERVER, names.PORT)
_MCP: Final = (names.MCP_METHOD, names.TOOL, names.ERROR)
_USAGE: Final = (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL, names.RESPONSE_MODEL, names.MODALITY)
_INFERENCE: Final = "gen_ai.client.inference"


def _make_token_metric(part: str, what: str) -> Metric:
    return Metric(f"{_INFERENCE}.usage.{part}", "counter", "{token}", what, _USAGE)


def _make_supervisor_metric(name: str, what: str, *labels: str) -> Metric:
    return Metric(f"cantrip.supervisor.{name}", "counter", "1", what, labels or ("kind",))


_ALL: Final = (
    Metric(
        f"{_INFERENCE}.duration",
        "histogram",
        "s",
        "Time of a query, all its attempts.",
        (*_QUERY, names.ERROR),
        SECONDS,
    ),
    Metric(
        f"{_INFERENCE}.time_to_first_chunk", "histogram", "s", "Time to the first part of an answer.", _QUERY, SECONDS
    ),
    Metric(
        f"{_INFERENCE}.time_per_output_chunk", "histogram", "s", "Time between parts of an answer.", _QUERY, SECONDS
    ),
    _make_token_metric("input_tokens", "Billed tokens of prompts, cached ones included."),
    _make_token_metric("output_tokens", "Billed tokens of answers, reasoning included."),
    _make_token_metric("cache_read.input_tokens", "Of the prompts, tokens read from a cache."),
    _make_token_metric("cache_write.input_tokens", "Of the prompts, tokens written to a cache."),
    _make_token_metric("reasoning.output_tokens", "Of the answers, tokens of reasoning."),
    Metric(f"{_INFERENCE}.operation.input_tokens", "histogram", "{token}", "Prompt tokens of a query.", _QUERY, TOKENS),
    Metric(
        f"{_INFERENCE}.operation.output_tokens", "histogram", "{token}", "Answer tokens of a query.", _QUERY, TOKENS
    ),
    Metric(
        "gen_ai.invoke_agent.duration", "histogram", "s", "Time of an episode.", (names.AGENT, names.ERROR), EPISODE
    ),
    Metric(
        "gen_ai.invoke_agent.inference_calls",
        "histogram",
        "{inference_call}",
        "Queries of an episode.",
        (names.AGENT,),
        CALLS,
    ),
    Metric(
        "gen_ai.invoke_agent.tool_calls", "histogram", "{tool_call}", "Gate calls of an episode.", (names.AGENT,), CALLS
    ),
    Metric(
        "gen_ai.execute_tool.duration",
        "histogram",
        "s",
        "Time of a gate call.",
        (names.TOOL, names.TOOL_TYPE, names.ERROR),
        SECONDS,
    ),
    Metric(
        "gen_ai.invoke_workflow.duration",
        "histogram",
        "s",
        "Time of a controller's run.",
        (names.WORKFLOW, names.ERROR),
        WORKFLOW,
    ),
    Metric("mcp.client.operation.duration", "histogram", "s", "Time of a call of a server's tool.", _MCP, MCP),
    Metric("mcp.server.operation.duration", "histogram", "s", "Time of a request of an MCP client.", _MCP, MCP),
    Metric("mcp.client.session.duration", "histogram", "s", "Time of a connection to a server of tools.", (), MCP),
    _make_supervisor_metric("restarts", "Restarts of actors."),
    _make_supervisor_metric("crashes", "Ends of actors that nobody wanted.", "kind", "reason"),
    _make_supervisor_metric("gave_up", "Supervisors that ended because of too many restarts."),
    _make_supervisor_metric("zombies", "Actors that could not be ended."),
    _make_supervisor_metric("dead_letters", "Messages that no actor handled."),
    _make_supervisor_metric("failed_starts", "Actors that failed to start."),
    Metric("cantrip.actors", "gauge", "1", "Actors, as they are now.", ("kind", "state")),
    Metric(
        "cantrip.mailbox.depth", "gauge", "1", "Messages that wait: the most of one actor, and all.", ("kind", "stat")
    ),
    Metric("cantrip.entities", "gauge", "1", "Loaded entities, as they are now.", ("state",)),
    Metric("cantrip.entity.ends", "counter", "1", "Ends of episodes.", ("reason", "ward")),
    Metric("cantrip.entity.resumed", "counter", "1", "Episodes that another process had begun."),
    Metric("cantrip.turns", "counter", "1", "Committed turns.", (names.AGENT,)),
    Metric("cantrip.turn.overhead", "histogram", "s", "Time of a turn without its query and its gates.", (), FAST),
    Metric("cantrip.loom.commit.duration", "histogram", "s", "Time of a group commit.", ("store",), FAST),
    Metric("cantrip.loom.batch", "histogram", "1", "Messages of a group commit.", ("store",), TOKENS[:6]),
    Metric("cantrip.loom.records", "counter", "1", "Records written.", ("store",)),
    Metric("cantrip.loom.bytes", "counter", "By", "Bytes of the records written.", ("store",)),
    Metric("cantrip.loom.backlog", "gauge", "1", "Messages that wait for the writer.", ("store",)),
    Metric(
        "cantrip.crystal.retries", "counter", "1", "Attempts that failed and were made again.", ("crystal", "status")
    ),
    Metric("cantrip.crystal.running", "gauge", "1", "Requests that are with the provider.", ("crystal",)),
    Metric("cantrip.crystal.waiting", "gauge", "1", "Requests that wait for their turn.", ("crystal",)),
    Metric("cantrip.crystal.paused", "gauge", "s", "For how long no request begins.", ("crystal",)),
    Metric("cantrip.crystal.breaker", "gauge", "1", "0 closed, 1 half open, 2 open.", ("crystal",)),
    Metric("cantrip.cost.usd", "counter", "{usd}", "What queries cost.", ("model", "cantrip")),
    Metric("cantrip.approvals.pending", "gauge", "1", "Requests that wait for a person.", ("gate",)),
    Metric("cantrip.approval.wait", "histogram", "s", "Time until a request is decided.", ("gate", "decision"), WAITS),
    Metric("cantrip.sandbox.duration", "histogram", "s", "Time of a program.", ("medium",), SECONDS),
    Metric("cantrip.sandbox.killed", "counter", "1", "Programs that exceeded a limit.", ("medium", "limit")),
    Metric("cantrip.streams", "gauge", "1", "Readers of event streams.", ("dialect",)),
    Metric("cantrip.streams.dropped", "counter", "1", "Readers that fell behind.", ("dialect",)),
    Metric("cantrip.loop.lag", "histogram", "s", "Lateness of a timer of one second.", (), FAST),
    Metric("cantrip.loom.failures", "counter", "1", "What the store refused or did not do.", ("store", "why")),
    Metric("cantrip.mail.wait", "histogram", "s", "Time from sending mail to taking it.", ("kind",), EPISODE),
    Metric("cantrip.mail.duration", "histogram", "s", "Time from sending an intent to its episode's end.", (), EPISODE),
    Metric("cantrip.timer.lateness", "histogram", "s", "Time from when a timer is due to when it fires.", (), SECONDS),
    Metric("cantrip.limits.draws", "counter", "1", "Slices of limits that processes share.", ("limits", "outcome")),
    Metric("cantrip.node.entities", "gauge", "1", "Root entities that this node has loaded."),
    Metric("cantrip.node.busy", "gauge", "1", "Root entities at work here."),
    Metric("cantrip.node.capacity", "gauge", "1", "Root entities that may be at work here."),
    Metric("cantrip.node.takeovers", "counter", "1", "Entities without an owner that this node took."),
    Metric("cantrip.node.late_renewals", "counter", "1", "Renewals that came after half of the ttl."),
    Metric("cantrip.cluster.nodes", "gauge", "1", "Nodes, as this one sees them.", ("state",)),
    Metric("cantrip.cluster.unowned", "gauge", "1", "Entities that have work and no owner."),
    Metric("cantrip.cluster.unowned.longest", "gauge", "s", "For how long the first of them has had none."),
    Metric("cantrip.cluster.stranded", "gauge", "1", "Entities that have work and that no living node can run."),
    Metric("cantrip.cluster.quarantined", "gauge", "1", "Entities whose nodes died again and again."),
    Metric("cantrip.queue.waiting", "gauge", "1", "Submissions that wait in a queue.", ("queue",)),
    Metric("cantrip.queue.running", "gauge", "1", "Entities that have a place in a queue.", ("queue",)),
)

LEGACY: Final = (
    Metric(
        "gen_ai.client.token.usage",
        "histogram",
        "{token}",
        "Tokens of a query, by the older name.",
        (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL, "gen_ai.token.type"),
        TOKENS,
    ),
    Metric(
        "gen_ai.client.operation.duration",
        "histogram",
        "s",
        "Time of a query, by the older name.",
        (names.OPERATION, names.PROVIDER, names.REQUEST_MODEL, names.ERROR),
        SECONDS,
    ),
)
"""The metrics for dashboards of earlier conventions, with `legacy=True`."""

PER_TENANT: Final = ("cantrip.turns", "cantrip.cost.usd", "cantrip.entity.ends")
"""The metrics that `tenant_metrics=True` counts by tenant."""

METRICS: Final = {metric.name: metric for metric in _ALL}
