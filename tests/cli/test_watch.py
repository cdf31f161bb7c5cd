"""The displays of a run, without a terminal."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from cantrip_actors import EntityEvent, EntityStartedEvent, TextEvent
from cantrip_actors.cli.watch import EventLines, LiveTree, PlainLines, Watcher

AT = 1_795_856_400.0


class Text(str):
    """A text that calls `read` when a display reads it."""

    __slots__ = ("read",)
    read: Callable[[], None]

    def split(self, *arguments: Any, **more: Any) -> list[str]:
        self.read()
        return super().split(*arguments, **more)


def make_start(entity: str, intent: str = "go") -> EntityEvent:
    return EntityStartedEvent(entity_id=entity, at=AT, intent=intent)


@pytest.mark.parametrize("kind", [PlainLines, LiveTree])
def test_an_entity_that_begins_while_the_others_are_drawn_is_drawn_the_next_time(
    kind: Callable[[io.StringIO], Watcher],
) -> None:
    screen = io.StringIO()
    watcher = kind(screen)
    intent, arrived = Text("the first"), list[str]()

    def begin_another() -> None:
        if not arrived:
            arrived.append("it begins")
            watcher.see(make_start("second00", "the second"))

    intent.read = begin_another
    watcher.see(make_start("first000", intent))
    watcher.show()
    watcher.close()
    assert arrived
    assert "the first" in screen.getvalue()
    assert "the second" in screen.getvalue()


@pytest.mark.parametrize("kind", [PlainLines, LiveTree, EventLines])
def test_a_display_reads_no_event_before_it_is_shown(kind: Callable[[io.StringIO], Watcher]) -> None:
    text, reads, screen = Text("long"), list[str](), io.StringIO()
    text.read = lambda: reads.append("read")
    watcher = kind(screen)
    watcher.see(make_start("e", text))
    assert not reads
    watcher.close()
    assert "long" in screen.getvalue()


def test_each_event_is_one_line_of_json_in_its_order() -> None:
    screen = io.StringIO()
    watcher = EventLines(screen)
    for number in range(5):
        watcher.see(TextEvent(entity_id="e", at=AT, turn_id="t", text=str(number)))
        if number % 2:
            watcher.show()
    watcher.close()
    assert [json.loads(line)["text"] for line in screen.getvalue().splitlines()] == ["0", "1", "2", "3", "4"]
