"""Delivery: every subscriber at its own pace, and none of them in the way."""

import gc
from typing import Any

import anyio
import pytest

from cantrip_actors.observe import (
    Batching,
    FellBehind,
    Output,
    TurnComplete,
    TurnError,
    TurnStarted,
    Upserts,
    UpsertSubscription,
    as_message,
    fold,
)
from cantrip_actors.stream.wire import Payload, ResponseDone, ResponseError, StreamError
from tests.observe.stage import (
    Source,
    begin,
    block_of,
    call,
    called,
    contents,
    more,
    output,
    said,
    statuses,
    text,
    upserts,
    words,
)

DONE = ResponseDone("completed")


class Hub(Upserts):
    """`Upserts` that are fed with payloads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.source = Source()

    def feed(self, *payloads: Payload, turn: str = "t", session: str = "s") -> None:
        self.publish([event for payload in payloads for event in self.source.read(payload, turn, session)])


def waiting(subscription: UpsertSubscription) -> list[Output]:
    made = []
    while (read := subscription.read()) is not None:
        made.append(read)
    return made


async def test_a_subscription_reads_outputs_in_order() -> None:
    hub = Hub(Batching((1,)))
    subscription = hub.subscribe()
    hub.feed(begin, text(), more("a b "), said("a b c"), DONE)
    hub.close()
    made = [m async for m in subscription]
    assert [m.type for m in made] == ["turn_started", "message", "message", "turn_complete"]


@pytest.mark.rule("U-24", "U-27")
async def test_pending_content_is_delivered_when_its_time_is_up() -> None:
    hub = Hub()
    subscription = hub.subscribe()
    read: list[tuple[float, Output]] = []

    async def reader() -> None:
        read.extend([(anyio.current_time() - start, made) async for made in subscription])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader)
        await anyio.sleep(1)
        start = anyio.current_time()
        hub.feed(begin, text(), more("hel"))
        await anyio.sleep(0.5)
        hub.feed(more("lo"))
        await anyio.sleep(5)
        hub.close()
    assert [(round(at, 3), getattr(m, "content", None)) for at, m in read] == [(0, None), (0.2, "hel"), (1.5, "hello")]


@pytest.mark.rule("U-27")
async def test_a_drip_is_visible_within_the_latency_at_every_reader() -> None:
    hub = Hub()
    first: list[float] = []

    async def reader() -> None:
        async for made in hub.subscribe():
            if upserts([made]):
                first.append(anyio.current_time() - start)
                return

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(reader)
        await anyio.sleep(1)
        start = anyio.current_time()
        hub.feed(begin, text())
        while len(first) < 3:
            hub.feed(more("w "))
            await anyio.sleep(0.05)
    assert all(at <= 0.2001 for at in first)


@pytest.mark.rule("U-55")
async def test_a_subscriber_that_never_reads_holds_only_the_latest_states() -> None:
    hub = Hub(Batching((1,)))
    stuck, reads = hub.subscribe(), hub.subscribe()
    begun = anyio.current_time()
    hub.feed(begin, text())
    for piece in words(5000):
        hub.feed(piece)
        waiting(reads)
    assert len(stuck) == 2
    assert anyio.current_time() == begun


@pytest.mark.rule("U-55")
async def test_a_subscriber_that_raises_does_not_affect_other_subscribers() -> None:
    hub = Hub()
    seen: list[Output] = []

    async def reads_one() -> None:
        async for _ in hub.subscribe():
            raise ZeroDivisionError

    async def breaks() -> None:
        with pytest.raises(ZeroDivisionError):
            await reads_one()

    async def reads() -> None:
        seen.extend([made async for made in hub.subscribe()])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(breaks)
        tasks.start_soon(reads)
        await anyio.sleep(1)
        hub.feed(begin, said("hello"))
        await anyio.sleep(1)
        hub.feed(DONE)
        hub.close()
    assert [m.type for m in seen] == ["turn_started", "message", "turn_complete"]


@pytest.mark.rule("U-56")
async def test_a_slow_subscriber_gets_merged_updates_with_every_create_and_complete() -> None:
    hub = Hub(Batching((1,)))
    slow, quick = hub.subscribe(), hub.subscribe()
    everything: list[Output] = []
    for payload in [begin, text(), *words(50), call(), said("all of it"), called({"q": 1}), output(), DONE]:
        hub.feed(payload)
        everything += waiting(quick)
    assert statuses(everything).count("update") > 20
    made = waiting(slow)
    assert [(m.type, getattr(m, "status", None)) for m in made] == [
        ("turn_started", None),
        ("message", "create"),
        ("tool_call", "create"),
        ("message", "complete"),
        ("tool_call", "complete"),
        ("turn_complete", "completed"),
    ]
    assert len(made[1].content.split()) == 50
    assert fold(made) == fold(everything)


@pytest.mark.rule("U-56")
async def test_a_waiting_update_is_replaced_by_the_completion_of_its_item() -> None:
    hub = Hub(Batching((1,)))
    subscription = hub.subscribe()
    hub.feed(text(), more("a b "))
    assert statuses(waiting(subscription)) == ["create"]
    hub.feed(more("c d "), more("e f "), said("all"))
    assert contents(waiting(subscription)) == ["all"]


@pytest.mark.rule("U-56")
async def test_a_subscriptions_queue_is_bounded_by_items_not_tokens() -> None:
    hub = Hub(Batching((1,)))
    subscription = hub.subscribe(capacity=10)
    hub.feed(text("a"), text("b"), text("c"))
    for n in range(1000):
        hub.feed(more(f"w{n} x ", "abc"[n % 3]))
    assert len(subscription) == 3
    assert hub.statistics() == {"subscribers": 1, "waiting": 3, "turns": 1}


async def test_the_slowest_reader_is_in_the_statistics() -> None:
    hub = Hub()
    slow, quick = hub.subscribe(), hub.subscribe()
    hub.feed(begin, said("a"))
    waiting(quick)
    assert hub.statistics() == {"subscribers": 2, "waiting": 2, "turns": 1}
    assert quick  # whether anything waits is len(), not whether there is a subscription
    assert slow


@pytest.mark.rule("U-24")
async def test_due_content_is_shown_before_the_content_of_the_next_envelope() -> None:
    hub = Hub()
    subscription = hub.subscribe()
    hub.feed(text(), more("one "))
    await anyio.sleep(0.2)
    hub.feed(more("two "))
    assert contents(waiting(subscription)) == ["one "]


@pytest.mark.rule("U-56")
async def test_turn_events_are_never_merged() -> None:
    hub = Hub()
    subscription = hub.subscribe()
    for n in range(20):
        hub.feed(begin, DONE if n % 2 else ResponseError(StreamError("X", "y")), turn=f"t{n}")
    made = waiting(subscription)
    assert [type(m) for m in made] == [TurnStarted, TurnError, TurnStarted, TurnComplete] * 10
    assert [m.turn_id for m in made[::2]] == [f"t{n}" for n in range(20)]


@pytest.mark.rule("U-56")
async def test_a_subscriber_that_falls_behind_gets_an_error_and_can_subscribe_again() -> None:
    hub = Hub()
    subscription = hub.subscribe(capacity=5)
    hub.feed(begin, *[said("x", f"m{n}") for n in range(6)])
    with pytest.raises(FellBehind, match="subscribe again"):
        await anext(subscription)
    assert len(upserts(waiting(hub.subscribe()))) == 6


@pytest.mark.rule("U-56", "U-57")
async def test_a_snapshot_of_any_length_is_read_and_then_the_capacity_counts() -> None:
    hub = Hub()
    hub.feed(begin, *[said("x", f"m{n}") for n in range(6)])
    subscription = hub.subscribe(capacity=3)
    assert len(upserts(waiting(subscription))) == 6
    slow = hub.subscribe(capacity=3)
    hub.feed(*[said("x", f"later{n}") for n in range(4)])
    with pytest.raises(FellBehind, match="subscribe again"):
        await anext(slow)


@pytest.mark.rule("U-57")
async def test_two_subscribers_see_the_same_states() -> None:
    hub = Hub(Batching((1,)))
    one, other = hub.subscribe(), hub.subscribe()
    hub.feed(begin, text(), more("a b "), call(), output(), more("c d "), said("a b c d"), DONE)
    assert fold(waiting(one)) == fold(waiting(other))


@pytest.mark.rule("U-57")
async def test_a_late_subscriber_gets_a_snapshot_and_then_the_same_outputs_as_others() -> None:
    hub = Hub(Batching((1,)))
    early = hub.subscribe()
    hub.feed(begin, text(), call(), more("a b "), more("c d "), said("done", "m2"))
    late = hub.subscribe()
    hub.feed(more("e f "), output(), said("a b c d e f"), DONE)
    seen, whole = waiting(late), waiting(early)
    assert seen[0] == TurnStarted("t", "s", "model-1", "provider-1")
    assert fold(seen) == fold(whole)
    ends = [block_of(m) for m in upserts(seen) if m.terminal]
    assert sorted(ends) == ["c", "m", "m2"]
    assert seen[-1] == whole[-1]


@pytest.mark.rule("U-57")
async def test_a_late_subscriber_sees_no_gap_and_no_duplicate() -> None:
    payloads = [begin, text(), *words(30), call(), called({}), output(), said("all"), text("n"), said("n", "n"), DONE]
    for moment in range(len(payloads) + 1):
        hub = Hub(Batching((3,)))
        early = hub.subscribe()
        hub.feed(*payloads[:moment])
        late = hub.subscribe()
        hub.feed(*payloads[moment:])
        seen, whole = waiting(late), waiting(early)
        assert fold(seen) == fold(whole)
        for item in ("m", "c", "n"):
            assert [m.status for m in upserts(seen) if block_of(m) == item and m.terminal] == ["complete"]
        assert [m for m in seen if not upserts([m])] == [m for m in whole if not upserts([m])]


@pytest.mark.rule("U-57")
async def test_the_snapshot_holds_the_last_turns_and_forgets_the_oldest() -> None:
    hub = Hub(kept=2)
    hub.feed(begin, said("running"), turn="open", session="another")
    for n in range(5):
        hub.feed(begin, said(f"{n}"), DONE, turn=f"t{n}")
    assert {m.turn_id for m in hub.snapshot()} == {"open", "t3", "t4"}
    assert contents(hub.snapshot()) == ["running", "3", "4"]
    hub.feed(begin, turn="t3")
    assert [m.turn_id for m in hub.snapshot() if isinstance(m, TurnStarted)] == ["open", "t4", "t3"]


@pytest.mark.rule("U-57")
async def test_a_snapshot_can_be_left_out() -> None:
    hub = Hub()
    hub.feed(begin, said("before"))
    subscription = hub.subscribe(snapshot=False)
    hub.feed(said("after", "m2"))
    assert contents(waiting(subscription)) == ["after"]


async def test_a_subscription_to_one_session_gets_only_its_outputs() -> None:
    hub = Hub()
    hub.feed(begin, said("a"), session="a")
    subscription = hub.subscribe("b")
    hub.feed(begin, said("a2", "m2"), session="a")
    hub.feed(begin, said("b"), session="b")
    assert {m.session_id for m in waiting(subscription)} == {"b"}


@pytest.mark.rule("U-62")
async def test_a_hub_without_subscribers_queues_nothing() -> None:
    hub = Hub()
    subscription = hub.subscribe()
    hub.feed(begin, text(), more("a"))
    del subscription
    gc.collect()
    assert hub.statistics()["subscribers"] == 0
    await anyio.sleep(60)
    hub.feed(said("a b"), DONE)
    assert contents(waiting(hub.subscribe())) == ["a b"]


@pytest.mark.rule("U-62")
async def test_the_number_of_subscribers_does_not_change_the_outputs() -> None:
    def run(watchers: int) -> list[object]:
        hub = Hub(Batching((2,)), wall=lambda: 0.0)
        watching = [hub.subscribe() for _ in range(watchers)]
        hub.feed(begin, text(), *words(20), said("all"), call(), output(), DONE)
        del watching
        return [as_message(m) for m in hub.snapshot()]

    assert run(0) == run(3)


@pytest.mark.rule("U-50")
async def test_open_items_and_turns_end_with_an_error_when_the_source_is_lost() -> None:
    hub = Hub()
    subscription = hub.subscribe()
    hub.feed(begin, text(), more("hel"))
    hub.publish([hub.source.crash()])
    made = waiting(subscription)
    assert [(m.type, getattr(m, "error_code", None)) for m in made] == [
        ("turn_started", None),
        ("message", "PROCESS_CRASH"),
        ("turn_error", "PROCESS_CRASH"),
    ]


async def test_a_closed_subscription_still_delivers_its_queued_outputs() -> None:
    hub = Hub()
    subscription = hub.subscribe()
    hub.feed(begin)
    subscription.close()
    hub.feed(said("unheard"))
    assert [m.type async for m in subscription] == ["turn_started"]
    hub.close()
    assert [m.type async for m in hub.subscribe()] == ["turn_started", "message"]


async def test_a_cancelled_reader_can_continue_to_read() -> None:
    hub = Hub()
    subscription = hub.subscribe()
    with anyio.move_on_after(1):
        await anext(subscription)
    hub.feed(begin)
    assert (await anext(subscription)).type == "turn_started"


async def test_two_readers_of_one_subscription_share_its_outputs() -> None:
    hub = Hub()
    subscription = hub.subscribe()
    seen: list[Output] = []

    async def reader() -> None:
        seen.extend([made async for made in subscription])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reader)
        tasks.start_soon(reader)
        await anyio.sleep(1)
        hub.feed(begin, said("a"), DONE)
        hub.close()
    assert sorted(m.type for m in seen) == ["message", "turn_complete", "turn_started"]


async def test_messages_for_a_wire_are_camel_case_and_say_what_they_are() -> None:
    hub = Hub(wall=lambda: 0.0)
    subscription = hub.subscribe()
    hub.feed(begin, said("hello"), text("open", "x"))
    started, message, *_ = map(as_message, waiting(subscription))
    assert started == {
        "type": "session:turn",
        "sessionId": "s",
        "payload": {
            "type": "turn_started",
            "turnId": "t",
            "sessionId": "s",
            "modelId": "model-1",
            "providerId": "provider-1",
        },
    }
    assert message == {
        "type": "session:upsert",
        "sessionId": "s",
        "payload": {
            "type": "message",
            "status": "complete",
            "turnId": "t",
            "sessionId": "s",
            "itemId": "t:1:m",
            "sourceTimestamp": "2026-01-01T00:00:00.000Z",
            "emittedAt": "1970-01-01T00:00:00.000Z",
            "content": "hello",
            "origin": "agent",
        },
    }
    assert hub.history("s") == {"type": "session:history", "sessionId": "s", "entries": [message["payload"]]}
    assert hub.history("another")["entries"] == []
