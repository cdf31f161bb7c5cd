"""What holds for every stream: however it is cut, mixed, cut short or turned upside down."""

import itertools
from collections import Counter, defaultdict
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors.observe import Batching, Output, TurnComplete, TurnError, TurnStarted, Upserts, fold
from cantrip_actors.observe.batching import GrowingText
from cantrip_actors.stream.wire import (
    FinalFunctionCall,
    FinalFunctionCallOutput,
    FinalMessage,
    FinalReasoning,
    ItemCancelled,
    ItemDelta,
    ItemDone,
    ItemError,
    ItemStart,
    Payload,
    ResponseDone,
    ResponseError,
    ResponseStart,
    StreamError,
)
from tests.exhaustive import EXHAUSTIVE
from tests.observe.stage import MORNING, Source, Stage, begin, contents, more, said, text, upserts

ERROR = StreamError("X", "y")
TEXTS = st.text(st.sampled_from("ab é\n \t"), max_size=80)


@st.composite
def cut(draw: st.DrawFn, whole: str) -> list[str]:
    """The same text in pieces, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    return [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]


cuts = TEXTS.flatmap(lambda whole: st.tuples(st.just(whole), cut(whole)))
gradients = st.lists(st.integers(1, 6), max_size=4)


@pytest.mark.rule("U-16")
@given(cuts)
def test_tokens_are_counted_as_if_the_text_had_come_whole(given_text) -> None:
    whole, pieces = given_text
    growing = GrowingText(Batching())
    for piece in pieces:
        growing.add(piece, 0.0)
    assert growing.tokens == len(whole.split())
    assert growing.get_text() == whole


@pytest.mark.rule("U-10", "U-11")
@given(cuts, gradients)
def test_a_text_cut_anywhere_has_the_same_final_state(given_text, gradient) -> None:
    whole, pieces = given_text
    stage = Stage(gradient)
    stage.feed(begin, text(), *map(more, pieces), said(whole), ResponseDone("completed"))
    final = list(fold(stage.seen).values())
    assert [(m.status, m.content) for m in final] == [("complete", whole)]


@pytest.mark.rule("U-10", "U-28")
@given(cuts, gradients)
def test_shown_content_only_grows_and_is_complete_at_the_end(given_text, gradient) -> None:
    whole, pieces = given_text
    stage = Stage(gradient)
    stage.feed(begin, text(), *map(more, pieces), ResponseDone("cancelled"))
    shown = contents(stage.seen)
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(shown))
    assert len(shown) == len(set(shown))
    assert (shown[-1:] or [""])[0] == (whole if whole.strip() else "")


@pytest.mark.rule("U-24", "U-27")
@given(st.lists(st.tuples(st.sampled_from(["a ", "b", " ", "c d e "]), st.floats(0, 3)), max_size=30), gradients)
def test_no_content_waits_longer_than_its_limit(pieces, gradient) -> None:
    stage = Stage(gradient, timeout=1.0, max_latency=0.2, max_wait=2.0)
    stage.feed(text())
    arrived: list[tuple[float, str, bool]] = []
    content = ""
    for piece, pause in pieces:
        content += piece
        arrived.append((stage.now, content, bool(stage.seen)))
        stage.feed(more(piece))
        stage.wait(pause)
    stage.wait(2.0)
    shown = [(datetime.fromisoformat(m.emitted_at).timestamp() - MORNING, m.content) for m in upserts(stage.seen)]
    for at, so_far, visible in arrived:
        if so_far.strip():
            seen_at = next(time for time, known in shown if known.startswith(so_far))
            assert seen_at <= at + (2.0 if visible else 0.2) + 0.001


# ------------------------------------------------------------------------------------------------------- whole streams


@st.composite
def item(draw: st.DrawFn, number: int) -> list[Payload]:
    """A well-formed item, from its start to its end."""
    item_id, kind = f"i{number}", draw(st.sampled_from(["message", "reasoning", "call"]))
    pieces = draw(st.lists(st.sampled_from(["a ", "b", " c d e f ", "\n"]), max_size=6))
    if kind == "call":
        call_id = f"call{number}"
        start: list[Payload] = [ItemStart(item_id, "function_call", name="gate", call_id=call_id)]
        done = [
            ItemDone(item_id, FinalFunctionCall("gate", call_id, {"n": number})),
            ItemDone(f"o{number}", FinalFunctionCallOutput(call_id, "out", draw(st.booleans()))),
        ]
    else:
        start = [ItemStart(item_id, kind)]
        content = "".join(pieces)
        done = [
            ItemDone(item_id, FinalMessage(content, "agent") if kind == "message" else FinalReasoning(content, "p"))
        ]
    ends: list[list[Payload]] = [done, [ItemError(item_id, ERROR)]]
    return [*start, *(ItemDelta(item_id, piece) for piece in pieces), *draw(st.sampled_from(ends))]


@st.composite
def mixed(draw: st.DrawFn, streams: list[list[object]]) -> list[object]:
    """Streams interleaved, each in its own order."""
    left = [list(stream) for stream in streams if stream]
    made = []
    while left:
        chosen = left[draw(st.integers(0, len(left) - 1))]
        made.append(chosen.pop(0))
        left = [stream for stream in left if stream]
    return made


items = (
    st.integers(0, 4)
    .flatmap(lambda count: st.tuples(*(item(n) for n in range(count))))
    .flatmap(lambda made: mixed([list(stream) for stream in made]))
)
ends = st.sampled_from(
    [ResponseDone("completed"), ResponseDone("cancelled"), ResponseDone("error"), ResponseError(ERROR)]
)


@pytest.mark.rule("U-37", "U-46")
@given(items, ends, gradients)
def test_every_shown_item_ends_exactly_once_and_before_its_turn(payloads, end, gradient) -> None:
    stage = Stage(gradient)
    stage.feed(begin, *payloads, end)
    assert isinstance(stage.seen[-1], TurnComplete | TurnError)
    shown = {m.item_id for m in upserts(stage.seen)}
    ended = Counter(m.item_id for m in upserts(stage.seen) if m.terminal)
    assert ended == dict.fromkeys(shown, 1)
    assert all(m.terminal for m in fold(stage.seen).values())


@pytest.mark.rule("U-37", "U-49")
@given(items, st.integers(0, 30), st.booleans(), gradients)
def test_a_turn_ended_by_an_error_leaves_no_item_open(payloads, length, crash, gradient) -> None:
    stage = Stage(gradient)
    stage.feed(begin, *payloads[:length])
    stage.crash(ERROR) if crash else stage.feed(ResponseError(ERROR))
    assert isinstance(stage.seen[-1], TurnError)
    assert all(m.terminal for m in fold(stage.seen).values())
    assert max(Counter(m.item_id for m in upserts(stage.seen) if m.terminal).values(), default=1) == 1


@pytest.mark.rule("U-44")
@settings(max_examples=100 if EXHAUSTIVE else 30)
@given(
    st.tuples(items, items)
    .map(lambda pair: [[(session, p) for p in [begin, *stream]] for session, stream in zip("ab", pair, strict=True)])
    .flatmap(lambda tagged: st.tuples(st.just(tagged), mixed(tagged))),
    ends,
    ends,
    gradients,
)
def test_turns_of_two_entities_do_not_affect_each_other(streams, end_a, end_b, gradient) -> None:
    tagged, together = streams
    stage = Stage(gradient)
    for session, payload in [*together, ("a", end_a), ("b", end_b)]:
        stage.feed(payload, session=session)
    for own, session, end in zip(tagged, "ab", (end_a, end_b), strict=True):
        alone = Stage(gradient)
        alone.feed(*(payload for _, payload in own), end, session=session)
        assert [m for m in stage.seen if m.session_id == session] == alone.seen


ids = st.sampled_from(["x", "y", "z"])
soup = st.one_of(
    st.just(begin),
    st.builds(ResponseStart, st.just("m"), st.just("q")),
    st.builds(
        ItemStart,
        ids,
        st.sampled_from(["message", "reasoning", "function_call", "function_call_output"]),
        st.none() | st.sampled_from(["", "a b c"]),
        st.none() | st.just("gate"),
        st.none() | ids,
    ),
    st.builds(ItemDelta, ids, st.sampled_from(["", " ", "a", "b c d e "])),
    st.builds(
        ItemDone,
        ids,
        st.one_of(
            st.builds(FinalMessage, TEXTS, st.just("agent")),
            st.builds(FinalReasoning, TEXTS, st.just("p")),
            st.builds(FinalFunctionCall, st.just("gate"), ids, st.just({})),
            st.builds(FinalFunctionCallOutput, ids, st.just("out"), st.booleans()),
        ),
    ),
    st.builds(ItemError, ids, st.just(ERROR)),
    st.builds(ItemCancelled, ids),
    ends,
    st.floats(0, 2),
)


@pytest.mark.rule("U-40", "U-41", "U-42", "U-44", "U-53")
@given(st.lists(st.tuples(st.sampled_from("ab"), soup), max_size=60), gradients)
def test_any_order_of_payloads_keeps_turns_consistent(happenings, gradient) -> None:
    stage = Stage(gradient, max_latency=0.2)
    for session, what in happenings:
        stage.wait(what) if isinstance(what, float) else stage.feed(what, session=session)
    running: dict[str, bool] = defaultdict(bool)
    over: dict[str, bool] = defaultdict(bool)
    for made in stage.seen:
        session = made.session_id
        if isinstance(made, TurnStarted):
            assert not running[session]
            running[session], over[session] = True, False
        elif isinstance(made, TurnComplete | TurnError):
            assert not over[session]
            running[session], over[session] = False, True
            assert isinstance(made, TurnError) or made.status in {"completed", "cancelled"}
        else:
            assert not over[session]


@pytest.mark.rule("U-56", "U-57")
@given(items, ends, st.sets(st.integers(0, 60)), st.integers(0, 60))
def test_a_subscriber_reading_at_any_moments_ends_with_the_same_states(payloads, end, moments, late) -> None:
    hub = Upserts(Batching((1,), max_latency=None), wall=lambda: 0.0, clock=lambda: 0.0)
    always, sometimes = hub.subscribe(), hub.subscribe()
    source, whole, some = Source(), list[Output](), list[Output]()
    joined = None

    def drain(subscription, into) -> None:
        while (made := subscription.read()) is not None:
            into.append(made)

    for n, payload in enumerate([begin, *payloads, end]):
        if n == late:
            joined = hub.subscribe()
        hub.publish(list(source.read(payload)))
        drain(always, whole)
        if n in moments:
            drain(sometimes, some)
    drain(sometimes, some)
    seen: list[Output] = []
    drain(joined or hub.subscribe(), seen)
    for outputs in (some, seen):
        assert fold(outputs) == fold(whole)
        assert Counter(m.item_id for m in upserts(outputs) if m.terminal) == Counter(
            m.item_id for m in upserts(whole) if m.terminal
        )
        assert [m for m in outputs if not upserts([m])] == [m for m in whole if not upserts([m])]
        assert outputs[-1] == whole[-1]
