"""Laws of the loop that hold for any script, any results of gates and any stop from outside."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from cantrip_actors.machine.actions import Ask, Child, Finish, Run, Spawn
from cantrip_actors.machine.context import LEFT_OUT
from cantrip_actors.machine.events import Begin, ChildOutcome, Failed, Replied, Stopped
from cantrip_actors.machine.project import make_fork_state
from cantrip_actors.machine.state import Identity, Phase, Plan
from cantrip_actors.records.records import (
    Committed,
    Ended,
    Folded,
    GateFinished,
    GateStarted,
    Header,
    IntentGiven,
    Record,
    Utterance,
)
from cantrip_actors.terms.call import Call
from cantrip_actors.terms.cantrip import Cantrip
from cantrip_actors.terms.folding import Folding
from cantrip_actors.terms.messages import Message, Response, ToolCall, Usage
from cantrip_actors.terms.ward import max_depth, max_turns, remove_gate
from tests.exhaustive import EXHAUSTIVE
from tests.machine.driver import ASKING, GATES, SPENT, Drive, call, cantrip
from tools import diagram

CALLS: list[ToolCall] = [
    call("echo", text="x"),
    call("echo", text="y"),
    call("fail"),
    call("page", path="p"),
    call("glance", path="p"),
    call("look"),
    call("done", answer=1),
    call("done"),
    call("pay", amount=1),
    call("pay", amount=100),
    call("sign", by="x"),
    call("question", text="Which?"),
    call("nothing"),
    call("echo"),
    ToolCall("", "echo", None, "{oops"),
    call("call_agent", intent="sub"),
    call("call_agent", intent="sub", gates=["fetch"]),
    call("call_agent"),
    call("call_agent_batch", intents=["a", "b"]),
    call("call_agent_batch", intents=["a", {"intent": "b", "crystal": "none"}]),
]
WEIGHTED = [one for one in CALLS for _ in range(1 if one.gate == "done" else 2)]

utterances = st.builds(
    lambda text, calls, usage: Response(text if text or calls else "text", tuple(calls), usage),
    st.sampled_from([None, "thinking"]),
    st.lists(st.sampled_from(WEIGHTED), max_size=4),
    st.builds(Usage, st.integers(0, 50), st.integers(0, 50)),
)
reasons = st.sampled_from([Stopped("cancelled", "c"), Stopped("timeout", "t"), Stopped("budget", "b")])
foldings = st.builds(Folding, st.sampled_from([None, 1, 1, 2, 4]), st.just(0.5), st.sampled_from([None, 1, 3]))


class Script(NamedTuple):
    """A life: sends, each with its replies; which query fails or spends a budget; the end."""

    sends: list[list[Response]]
    fail_at: int | None
    spend_at: int | None
    stop_at: int | None
    stopped: Stopped
    fates: list[bool]
    max_turns: int
    max_depth: int
    removed: bool
    requires_done: bool
    lasting: bool
    folding: Folding
    prompt: str | None


scripts = st.builds(
    Script,
    sends=st.lists(st.lists(utterances, min_size=1, max_size=8), min_size=1, max_size=3),
    fail_at=st.none() | st.integers(1, 9),
    spend_at=st.none() | st.integers(1, 9),
    stop_at=st.none() | st.integers(1, 20),
    stopped=reasons,
    fates=st.lists(st.booleans(), min_size=1, max_size=4),
    max_turns=st.sampled_from([1, 2, 3, 8, 8]),
    max_depth=st.integers(0, 2),
    removed=st.booleans(),
    requires_done=st.booleans(),
    lasting=st.booleans(),
    folding=foldings,
    prompt=st.sampled_from([None, "Be kind"]),
)


def live(script: Script, *, moves: Sequence[Cantrip] = (), **plan: Any) -> Drive:
    """Drive an entity through a script, as far as that goes. Before its further intents it moves to `moves`."""
    wards = [max_turns(script.max_turns), max_depth(script.max_depth)]
    made = cantrip(
        *wards,
        *([remove_gate("look")] if script.removed else []),
        gates=(*GATES, *ASKING),
        call=Call(script.prompt),
        require_done_tool=script.requires_done,
        folding=script.folding,
    )
    fates = iter(script.fates * 100)

    def fare(child: Child) -> ChildOutcome:
        return ChildOutcome("well", None, Usage(1, 1)) if next(fates) else ChildOutcome(None, "fell", Usage(2, 0))

    drive = Drive(made, children=fare, lasting=script.lasting, window=60, **plan)
    for n, send in enumerate(script.sends):
        drive.replies = list(send)
        if 0 < n <= len(moves):
            drive.move(moves[n - 1])
        action = drive.feed(Begin(f"intent {n}", {"n": n} if n % 2 else None))
        while not isinstance(action, Finish):
            if script.stop_at is not None and len(drive.transitions) >= script.stop_at:
                action = drive.feed(script.stopped)
            elif isinstance(action, Ask) and not drive.replies:
                return drive
            elif isinstance(action, Ask) and len(drive.asks) == script.fail_at:
                action = drive.feed(Failed("down"))
            elif isinstance(action, Ask) and len(drive.asks) == script.spend_at:
                drive.spent = SPENT
                action = drive.feed(Replied(drive.replies.pop(0)))
            else:
                action = drive.feed(drive.event_for(action))
        if drive.state.phase is Phase.OVER:
            break
    return drive


def of(kind: type, records: Sequence[Record]) -> list[Any]:
    """The records of a kind."""
    return [record for record in records if isinstance(record, kind)]


law: Callable[..., Any] = given(scripts)


@pytest.mark.rule("LOOP-1", "LOOP-5")
@law
def test_every_call_is_answered_exactly_once_before_the_next_utterance(script: Script) -> None:
    drive = live(script)
    open_: list[str] = []
    for message in drive.context:
        if message.role == "tool":
            assert message.tool_call_id in open_
            open_.remove(message.tool_call_id)
        else:
            asking = drive.state.phase in (Phase.ACTING, Phase.WAITING)
            assert not open_ or asking
            open_ = [one.id for one in message.tool_calls]
    if drive.state.phase not in (Phase.ACTING, Phase.WAITING):
        assert open_ == []


@pytest.mark.rule("LOOP-1", "D-004")
@law
def test_two_utterances_never_follow_each_other(script: Script) -> None:
    for query in live(script).queries:
        roles = [message.role for message in query]
        assert ("assistant", "assistant") not in set(pairwise(roles))
        assert roles[-1] in ("user", "tool")


@pytest.mark.rule("LOOM-2", "D-008")
@law
def test_turns_are_numbered_from_1_and_each_follows_the_one_before(script: Script) -> None:
    drive = live(script, parent_turn="above")
    done = drive.committed()
    assert [one.sequence for one in done] == list(range(1, len(done) + 1))
    assert [one.parent_id for one in done] == ["above", *(one.turn_id for one in done)][: len(done)]
    assert len({one.turn_id for one in done} | {"above"}) == len(done) + 1


@pytest.mark.rule("LOOP-3", "LOOP-4", "LOOM-7")
@law
def test_an_episode_has_exactly_one_outcome_and_only_its_last_turn_has_it(script: Script) -> None:
    drive = live(script)
    episode: list[Committed] = []
    for step in drive.transitions:
        episode += of(Committed, step.records)
        if isinstance(step.action, Finish):
            outcome = step.action.outcome
            assert [outcome.terminated, outcome.truncated, outcome.error is not None].count(True) == 1
            assert not any(one.terminated or one.truncated for one in episode[:-1])
            if outcome.terminated or outcome.reason == "truncated":
                assert (episode[-1].terminated, episode[-1].truncated) == (outcome.terminated, outcome.truncated)
            assert (outcome.summary is not None) == outcome.truncated
            event(f"ended: {outcome.reason}")
            episode = []
    assert not any(one.terminated or one.truncated for one in episode)


@pytest.mark.rule("ENTITY-4", "LOOM-7")
@law
def test_the_record_of_an_end_is_the_last_record(script: Script) -> None:
    for step in live(script).transitions:
        ended = of(Ended, step.records)
        is_recorded = isinstance(step.action, Finish) and (
            step.after.phase is Phase.OVER or step.action.outcome.error or step.action.outcome.reason == "timeout"
        )
        if is_recorded:
            assert ended == [step.records[-1]]
            assert ended[0].reason == step.action.outcome.reason
        else:
            assert ended == []


@pytest.mark.rule("LOOM-1", "LOOM-3")
@law
def test_every_action_is_recorded_before_it_runs_and_only_once(script: Script) -> None:
    drive = live(script)
    seen: list[Record] = []
    for step in drive.transitions:
        seen += step.records
        committed = {one.turn_id for one in of(Committed, seen)}
        match step.action:
            case Run(gate=gate, call=made, checks=False):
                assert gate.idempotent or GateStarted("e1", step.turn_id, made.id, gate.name) == seen[-1]
                assert step.turn_id not in committed
            case Spawn(turn_id=turn_id):
                assert turn_id == of(Committed, seen)[-1].turn_id
            case Ask():
                assert len(of(Utterance, seen)) == step.after.conversation.said
                assert step.turn_id not in committed
    for kind, key in (
        (Header, lambda r: r.entity_id),
        (Utterance, lambda r: r.turn_id),
        (Committed, lambda r: r.turn_id),
        (GateStarted, lambda r: (r.turn_id, r.tool_call_id)),
        (GateFinished, lambda r: (r.turn_id, r.observation.tool_call_id)),
        (IntentGiven, lambda r: r.intent),
    ):
        keys = [key(record) for record in of(kind, drive.records)]
        assert len(keys) == len(set(keys)), kind


@pytest.mark.rule("CIRCLE-7", "D-003")
@law
def test_observations_are_recorded_in_the_order_of_the_calls_and_none_after_done(script: Script) -> None:
    drive = live(script)
    calls = {said.turn_id: [one.id for one in said.tool_calls] for said in of(Utterance, drive.records)}
    finished: dict[str, list[Any]] = {turn_id: [] for turn_id in calls}
    belongs = {one.turn_id: one.utterance_id for one in drive.committed()}
    for record in of(GateFinished, drive.records):
        finished[belongs.get(record.turn_id, drive.state.turn.utterance_id)].append(record.observation)
    for turn_id, observations in finished.items():
        ids = [one.tool_call_id for one in observations]
        assert ids == calls[turn_id][: len(ids)]
        assert not any(one.gate == "done" and not one.is_error for one in observations[:-1])


@pytest.mark.rule("ENTITY-3", "LOOP-5")
@law
def test_the_context_only_grows(script: Script) -> None:
    for step in live(script).transitions:
        before, after = list(step.before.conversation.context), list(step.after.conversation.context)
        if not of(Folded, step.records):
            assert after[: len(before)] == before
            assert len(step.before.conversation.starts) <= len(step.after.conversation.starts)


@pytest.mark.rule("LOOP-5", "D-007", "LOOM-6", "CALL-5", "CALL-2")
@law
def test_a_folded_query_has_the_call_the_intent_a_marker_and_the_newest_turns(script: Script) -> None:
    drive = live(script)
    asked = [step for step in drive.transitions if isinstance(step.action, Ask)]
    for step, query in zip(asked, drive.queries, strict=True):
        state = step.after.conversation
        head = ([Message("system", script.prompt)] if script.prompt else []) + [Message("user", "intent 0")]
        assert query[: len(head)] == head
        assert Message("user", of(IntentGiven, drive.records)[0].intent) in query
        assert len(query) == len(state.context)
        if not state.folded:
            continue
        event("folded")
        assert query[state.head].content == f"[folded: turns 1-{state.starts[0][1] - 1}]"
        newest = [m.content for m in query if m.content and m.content.startswith("intent ")][-1]
        given_ = [record for s in drive.transitions[: drive.transitions.index(step) + 1] for record in s.records]
        assert newest == of(IntentGiven, given_)[-1].intent


@pytest.mark.rule("D-007", "LOOM-5", "PROD-4")
@law
def test_a_fold_leaves_the_log_whole_and_the_newest_turn_in_sight(script: Script) -> None:
    drive = live(script)
    folds = 0
    for step in drive.transitions:
        folds += len(of(Folded, step.records))
        before, now = step.before.conversation, step.after.conversation
        assert before.folded <= now.folded < max(1, now.said)
        if isinstance(step.action, Ask):
            after = script.folding.trigger_after_turns
            unfolded = now.said - now.folded
            assert after is None or unfolded <= max(after, script.folding.keep)
    assert sum(len(turn.gate_calls) for turn in drive.turns) <= len(of(GateFinished, drive.records))
    assert len(drive.turns) == len(drive.committed())
    event(f"folds: {min(folds, 3)}")


@pytest.mark.rule("LOOP-4", "LOOP-2")
@law
def test_no_more_utterances_than_max_turns_for_each_send(script: Script) -> None:
    drive = live(script)
    count = 0
    for record in drive.records:
        if isinstance(record, IntentGiven):
            count = 0
        elif isinstance(record, Utterance):
            count += 1
        assert count <= script.max_turns


@pytest.mark.rule("CIRCLE-6", "COMP-6")
@law
def test_a_gate_removed_by_a_ward_never_runs(script: Script) -> None:
    drive = live(script)
    if script.removed:
        assert "look" not in [name for name, _ in drive.ran]
    if script.max_depth == 0:
        assert drive.spawned == []
    for spawn in drive.spawned:
        for child in spawn.children:
            assert child.cantrip.circle.resolved.depth == script.max_depth - 1


@pytest.mark.rule("PROD-3", "LOOM-9")
@law
def test_usage_adds_up(script: Script) -> None:
    drive = live(script)
    total = sum((said.usage for said in of(Utterance, drive.records)), Usage())
    assert drive.state.usage == total
    if drive.state.phase in (Phase.IDLE, Phase.OVER):
        assert sum((turn.usage for turn in drive.turns), Usage()) == total
    children = [record.observation for record in of(GateFinished, drive.records)]
    assert drive.ledger.below.total_tokens >= sum(
        2 for seen in children if seen.gate == "call_agent" and not seen.is_error
    )


@pytest.mark.rule("PROD-5", "D-010", "CIRCLE-4", "CIRCLE-5")
@law
def test_an_ephemeral_result_is_whole_in_the_log_and_a_placeholder_in_the_queries(script: Script) -> None:
    drive = live(script)
    for record in of(GateFinished, drive.records):
        if record.observation.gate == "page" and not record.observation.is_error:
            assert record.observation.content == "the whole of p"
    for query in drive.queries:
        assert not any(m.content == "the whole of p" for m in query)
        glances = [n for n, m in enumerate(query) if m.content == "a look at p"]
        newest = max(n for n, m in enumerate(query) if m.role == "assistant") if glances else 0
        assert all(n > newest for n in glances)


@law
def test_the_table_lists_every_transition_of_random_runs(script: Script) -> None:
    stated = {(row.phase, row.event, row.after, row.action) for row in diagram.table()}
    for step in live(script).transitions:
        happened = (
            step.before.phase.name,
            type(step.event).__name__,
            step.after.phase.name,
            type(step.action).__name__,
        )
        assert happened in stated


def plan_of_fork(drive: Drive) -> Plan:
    """The plan of a fork with the same cantrip."""
    return Plan.of(drive.plan.cantrip, Identity("e2", parent_turn="t", forked=True), window=60)


def up_to_last_turn(records: Sequence[Record]) -> list[Any]:
    """The records up to the last committed turn: what a fork from there has of them."""
    ends = [n for n, record in enumerate(records) if isinstance(record, Committed)]
    return list(records[: ends[-1] + 1]) if ends else []


def shown(context: Sequence[Any]) -> list[Any]:
    """A context without what fades when."""
    return [getattr(item, "message", item) for item in context]


@pytest.mark.rule("LOOM-4", "LOOM-5")
@law
def test_replaying_the_log_up_to_any_turn_gives_the_context_that_the_entity_had(script: Script) -> None:
    drive = live(script)
    seen: list[Record] = []
    for step in drive.transitions:
        seen += step.records
        if not of(Committed, step.records):
            continue
        ends = max(n for n, one in enumerate(seen) if isinstance(one, Committed))
        state = make_fork_state(plan_of_fork(drive).shape, seen[: ends + 1])
        if of(Folded, seen[ends + 1 :]):
            continue  # the entity folds before its next query; a fork from that turn folds for itself
        whole, lived = shown(state.conversation.context), shown(step.after.conversation.context)
        assert whole[: len(lived)] == lived
        seam = isinstance(step.action, Spawn)
        assert {m.content for m in whole[len(lived) :]} == ({LEFT_OUT} if seam else set())
        forked, now = state.conversation, step.after.conversation
        assert list(forked.starts) == list(now.starts)
        assert (state.sequence, forked.said, forked.head) == (step.after.sequence, now.said, now.head)
        event("forked at a seam" if seam else "forked at a turn")


def make_fork(lineage: list[Any], script: Script, entity_id: str) -> Drive:
    """Return a fork that continues from the last turn of `lineage`."""
    return live(script, lineage=lineage, entity_id=entity_id, parent_turn=lineage[-1].turn_id, forked=True)


def assert_fork(fork: Drive, lineage: list[Any]) -> None:
    """It begins with what is inherited and is numbered by itself."""
    inherited = shown(make_fork_state(fork.plan.shape, lineage).conversation.context)
    if not of(Folded, fork.records):
        assert shown(fork.state.conversation.context)[: len(inherited)] == inherited
    assert fork.transitions[0].before.inherited == fork.transitions[0].before.sequence
    assert [turn.sequence for turn in fork.turns] == list(range(1, len(fork.turns) + 1))
    assert [turn.parent_id for turn in fork.turns[:1]] in ([], [lineage[-1].turn_id])
    assert fork.queries[0][-1].content == "intent 0"
    ids = [one.id for message in fork.context for one in message.tool_calls]
    assert len(ids) == len(set(ids))


@pytest.mark.rule("LOOM-4")
@settings(max_examples=100 if EXHAUSTIVE else 30)
@given(scripts, scripts, st.integers(0, 30))
def test_a_fork_continues_from_any_turn_and_leaves_the_original_unchanged(one: Script, two: Script, at: int) -> None:
    original = live(one)
    ends = [n for n, record in enumerate(original.records) if isinstance(record, Committed)]
    assume(ends)
    before = list(original.records), list(original.state.conversation.context)
    lineage = original.records[: ends[at % len(ends)] + 1]
    assert_fork(make_fork(lineage, two, "e2"), lineage)
    assert (list(original.records), list(original.state.conversation.context)) == before


@pytest.mark.rule("LOOM-4")
@settings(max_examples=100 if EXHAUSTIVE else 30)
@given(scripts, scripts)
def test_a_fork_of_a_fork_begins_with_the_path_of_both(one: Script, two: Script) -> None:
    lineage = up_to_last_turn(live(one).records)
    assume(lineage)
    fork = make_fork(lineage, two, "e2")
    own = up_to_last_turn(fork.records)
    assume(own)
    state = make_fork_state(fork.plan.shape, [*lineage, *own])
    assert state.inherited == state.sequence == len(of(Committed, lineage)) + len(of(Committed, own))
    last = [step for step in fork.transitions if of(Committed, step.records)][-1]
    if not of(Folded, last.records):
        lived = shown(last.after.conversation.context)
        assert shown(state.conversation.context)[: len(lived)] == lived
    assert_fork(make_fork([*lineage, *own], one, "e3"), [*lineage, *own])
