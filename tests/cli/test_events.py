"""`cantrip events`, and the file of `cantrip serve --webhooks`."""

import json
from pathlib import Path

import pytest
import typer

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.cli import following
from cantrip_actors.cli.webhooks_file import read_webhooks
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("W-12")

LOOM = "sqlite:events.db"


def cast_one() -> None:
    cantrip = Cantrip(scripted(["yes"]), circle=Circle(["done"], [max_turns(3)]))
    with Runtime.blocking(LOOM) as runtime:
        runtime.cast(cantrip, "is it so?")


def test_events_are_printed_after_any_position_and_followed(cantrip, place, monkeypatch):
    cast_one()
    cast_one()
    lines = cantrip("events", "--loom", LOOM).out.splitlines()
    printed = [json.loads(line) for line in lines]
    assert [event["type"] for event in printed].count("EntityEndedEvent") == 2
    for number, event in enumerate(printed):
        assert cantrip("events", "--loom", LOOM, "--after", event["id"]).out.splitlines() == lines[number + 1 :]

    pauses = iter([cast_one, None])

    def pause(_seconds: float) -> None:
        work = next(pauses)
        if work is None:
            raise KeyboardInterrupt
        work()

    monkeypatch.setattr(following.time, "sleep", pause)
    followed = [json.loads(line)["type"] for line in cantrip("events", "--loom", LOOM, "--follow").out.splitlines()]
    assert (followed[0], followed[-1]) == ("EntityStartedEvent", "EntityEndedEvent")


def test_events_cannot_be_followed_in_a_file_that_one_process_has_or_after_no_id(cantrip, place):
    (place / "loom.jsonl").touch()
    cast_one()
    for loom in ("jsonl:loom.jsonl", "loom.jsonl"):
        assert cantrip("events", "--loom", loom, "--follow").code == 2
    assert cantrip("events", "--loom", LOOM, "--after", "yesterday").code == 2


def test_webhooks_are_read_from_a_file_and_mistakes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "webhooks.toml"
    row = (
        '[[webhook]]\nurl = "https://example.org/hook"\nsecret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="\n'
    )
    path.write_text(row + 'events = ["request.opened"]\n')
    (hook,) = read_webhooks(path)
    assert (hook.url, hook.events) == ("https://example.org/hook", ("request.opened",))
    for text in (
        "webhook = 1",
        "[other]\n",
        row + "colour = 1\n",
        row + 'events = ["ends"]\n',
        "[[webhook",
        '[[webhook]]\nurl = "https://x"\n',
    ):
        path.write_text(text)
        with pytest.raises(typer.BadParameter, match=r"webhooks\.toml"):
            read_webhooks(path)
