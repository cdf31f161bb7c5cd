"""The working context: an append-only sequence as a value, and views of it."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_actors.terms.context import Fading, Shared, View
from cantrip_actors.terms.messages import Message

ops = st.lists(
    st.tuples(st.integers(0, 20), st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3))), max_size=30
)


@pytest.mark.rule("ENTITY-3")
class TestShared:
    @given(ops)
    def test_a_context_is_a_value_when_several_extend_one_prefix(self, todo: list[tuple[int, Any]]) -> None:
        made: list[tuple[Shared[int], list[int]]] = [(Shared(), [])]
        for at, what in todo:
            shared, plain = made[at % len(made)]
            if isinstance(what, list):
                made.append((shared.extend(what), plain + what))
            else:
                made.append((shared.append(what), [*plain, what]))
            for one, model in made:
                assert list(one) == model
                assert len(one) == len(model)
                assert one == model

    @given(st.lists(st.integers()), st.lists(st.integers(), max_size=3), st.data())
    def test_a_shared_list_reads_like_a_list(self, items: list[int], more: list[int], data: Any) -> None:
        shared = Shared(items)
        shared.extend(more)  # a longer one looks at the same list
        bound = st.none() | st.integers(-len(items) - 2, len(items) + 2)
        cut = slice(data.draw(bound), data.draw(bound), data.draw(bound.filter(lambda step: step != 0)))
        assert shared[cut] == items[cut]
        for index in range(-len(items), len(items)):
            assert shared[index] == items[index]
        for index in (len(items), -len(items) - 1):
            with pytest.raises(IndexError, match=f"index .* of a sequence of {len(items)}"):
                shared[index]
        assert list(reversed(shared)) == items[::-1]

    def test_equality_and_hash_follow_the_items(self) -> None:
        one, other = Shared([1, 2]), Shared([1]).append(2)
        assert one == other
        assert hash(one) == hash(other)
        assert one != Shared([1])
        assert one != 5
        assert repr(one) == "Shared([1, 2])"

    def test_an_iterator_ends_at_the_length_at_its_start(self) -> None:
        shared = Shared([1, 2])
        going: Iterator[int] = iter(shared)
        next(going)
        shared.append(3)
        assert list(going) == [2]

    def test_appending_at_the_tip_copies_nothing(self) -> None:
        one = start = Shared([0])
        for n in range(1, 1000):
            one = one.append(n)
            assert one.origin == start.origin
        assert list(start) == [0]
        assert sys.getsizeof(one) == sys.getsizeof(start)

    def test_a_fork_copies_once_and_then_shares_again(self) -> None:
        trunk = Shared(range(100))
        trunk.append("original")
        fork = trunk.append("fork")
        assert fork.origin != trunk.origin
        assert fork.append("on").append("and on").origin == fork.origin
        assert len(trunk) == 100


def said(n: int) -> Message:
    return Message("user", str(n))


items = st.lists(
    st.one_of(
        st.integers(0, 99).map(said),
        st.tuples(st.integers(0, 99), st.integers(0, 6)).map(lambda x: Fading(said(x[0]), Message("user", "…"), x[1])),
    ),
    max_size=12,
)


class TestView:
    @pytest.mark.rule("LOOM-5", "LOOM-6", "D-010")
    @given(items, st.integers(0, 7), st.data())
    def test_a_context_reads_like_a_list(self, context: list[Any], query: int, data: Any) -> None:
        model = [
            one if isinstance(one, Message) else one.placeholder if query >= one.since else one.message
            for one in context
        ]
        view = View(Shared(context), query)
        assert list(view) == model
        assert len(view) == len(model)
        assert view == model
        assert [view[n] for n in range(-len(model), len(model))] == model + model
        bound = st.none() | st.integers(-14, 14)
        one = slice(data.draw(bound), data.draw(bound), data.draw(bound.filter(lambda step: step != 0)))
        assert view[one] == model[one]
        for index in (len(model), -len(model) - 1):
            with pytest.raises(IndexError, match=f"index .* of a sequence of {len(model)}"):
                view[index]

    def test_a_view_is_not_changed_by_later_appends(self) -> None:
        context: Shared[Any] = Shared([said(1)])
        view = View(context)
        context.append(said(2))
        assert list(view) == [said(1)]
        assert (view != [said(2)], view != 3, hash(view) == hash((said(1),))) == (True, True, True)
        assert repr(view).startswith("View([Message(role='user', content='1'")

    def test_the_prefix_is_the_same_while_the_context_only_grows(self) -> None:
        context: Shared[Any] = Shared([said(1)])
        assert View(context, 1).prefix == View(context.append(said(2)), 1).prefix

    def test_the_prefix_changes_after_a_fork_a_fold_or_a_placeholder(self) -> None:
        context: Shared[Any] = Shared([said(1), said(2)])
        view = View(context, 1)
        context.append(said(3))
        fork = context.append(said(4))
        assert View(fork, 1).prefix != view.prefix
        assert View(Shared([said(0), said(2)]), 1).prefix != view.prefix
        assert View(context, 1, faded=1).prefix != view.prefix

    def test_the_prefix_of_a_deleted_context_is_never_reused(self) -> None:
        gone = [View(Shared([said(n)])).prefix for n in range(50)]
        assert not any(a == b for n, a in enumerate(gone) for b in gone[:n])
