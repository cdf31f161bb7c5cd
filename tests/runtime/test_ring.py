"""The ring under all subscriptions: each reader gets each value once and in order, or learns how many it missed."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.runtime.events.ring import Missed, Ring

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 3)),  # the key of the value, which replaces the last one with it
        st.tuples(st.just("read"), st.integers(0, 2)),  # the reader
        st.tuples(st.just("take"), st.integers(0, 2)),
    ),
    max_size=60,
)


@pytest.mark.rule("C-64")
@given(ACTIONS, st.integers(1, 8), st.booleans())
def test_a_reader_gets_each_value_once_in_order_or_learns_how_many_it_missed(
    actions: list[tuple[str, int]], most: int, replaces: bool
) -> None:
    ring: Ring[tuple[int, int]] = Ring(most)
    newest: dict[int, int] = {}
    replaced: set[int] = set()
    published = 0
    nexts = [0, 0, 0]
    got: list[list[int]] = [[], [], []]
    missed: list[list[int]] = [[], [], []]

    def read(reader: int, *, one: bool = False) -> None:
        begin, end = nexts[reader], ring.end
        if begin < ring.begin:
            with pytest.raises(Missed) as caught:
                ring.read(begin)
            assert caught.value.count == caught.value.begin - begin
            missed[reader] += range(begin, caught.value.begin)
            nexts[reader] = caught.value.begin
            read(reader)
        elif one and begin < end:
            value = ring.get(begin)
            nexts[reader] += 1
            got[reader] += [] if value is None else [value[0]]
        else:
            got[reader] += [number for number, _ in ring.read(begin)]
            nexts[reader] = end

    for action, which in actions:
        if action == "publish":
            if replaces:
                older = newest.pop(which, -1)
                ring.remove(older)
                replaced.add(older)
            newest[which] = ring.publish((published, which))
            assert newest[which] == published
            published += 1
            assert ring.end - ring.begin <= most
        else:
            read(which, one=action == "take")
    for reader in range(3):
        read(reader)
        assert got[reader] == sorted(set(got[reader])), "each once, in order"
        assert not set(got[reader]) & set(missed[reader])
        assert set(range(published)) - set(got[reader]) - set(missed[reader]) <= replaced


@pytest.mark.rule("HTTP-06")
@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 20))
def test_the_values_of_a_ring_have_a_bounded_size(sizes: list[int], most_size: int) -> None:
    ring: Ring[int] = Ring(100, most_size=most_size, measure=int)
    for number, size in enumerate(sizes):
        ring.publish(size)
        if number % 3 == 0:
            ring.remove(number)
        kept = ring.read(ring.begin)
        assert ring.size == sum(kept)
        assert ring.size <= most_size or len(kept) == 1


@pytest.mark.rule("C-64")
async def test_waiting_readers_get_values_that_are_published_and_the_end() -> None:
    ring: Ring[int] = Ring(4)
    seen: list[list[int]] = []

    async def read() -> None:
        cursor, mine = ring.end, []
        while cursor < ring.end or not ring.is_closed:
            mine += ring.read(cursor)
            cursor = ring.end
            await ring.wait(cursor)
        seen.append(mine)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(read)
        for number in range(10):
            await anyio.sleep(1)
            ring.publish(number)
        ring.close()
    assert seen == [list(range(10))] * 3
