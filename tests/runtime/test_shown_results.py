"""How much of a result a query shows, and how an entity reads the rest."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server.mcpserver import MCPServer

from cantrip_actors import Cantrip, Circle, Folding, Message, Runtime, gate, scripted
from cantrip_actors.gates import ask
from cantrip_actors.mcp import inproc
from cantrip_actors.terms.context import LEAST_SHOWN, ShownBound
from cantrip_actors.terms.errors import InvalidCantrip
from cantrip_actors.wards import max_depth, max_turns
from tests.runtime.spells import done, say

pytestmark = pytest.mark.rule("V-05")

LONG = "BEGIN" + "".join(f"{n:09}\n" for n in range(30_000)) + "THE END"


@gate
async def read_log() -> str:
    """Return a long text."""
    return LONG


@gate(max_shown=1_000)
async def read_little() -> str:
    """Return a long text, of which little is shown."""
    return LONG


@gate(max_shown=10**6)
async def read_all() -> str:
    """Return a long text, all of which is shown."""
    return LONG


def library() -> MCPServer:
    server = MCPServer("library")

    @server.tool()
    def find() -> str:
        """Find a text."""
        return LONG

    @server.resource("book://one", name="One", description="A book.", mime_type="text/plain")
    def one() -> str:
        return LONG

    return server


def shown(context: Sequence[Message]) -> list[str]:
    return [message.content or "" for message in context if message.role == "tool"]


def long_child(context: Sequence[Message]) -> object:
    if context[0].content == "child":
        return done(LONG)
    return done("ok") if len(context) > 1 else say("call_agent", intent="child")


RESULTS: dict[str, tuple[Any, list[Any]]] = {
    "a gate": ([say("read_log"), done("ok")], [read_log]),
    "a child": (long_child, ["call_agent"]),
    "a tool of a server": ([say("library__find"), done("ok")], [inproc("library", library())]),
    "a resource of a server": (
        [say("library__read", uri="book://one"), done("ok")],
        [inproc("library", library())],
    ),
    "another entity": ([say("ask", to="other", message="?"), done("ok")], [ask.with_(to=["other"])]),
}


@pytest.mark.parametrize("source", RESULTS)
async def test_a_query_shows_the_two_ends_of_a_long_result_and_the_loom_keeps_all_of_it(source: str) -> None:
    says, gates = RESULTS[source]
    crystal = scripted(says, context_window=8_000)
    circle = Circle(["done", *gates], [max_turns(9), max_depth(1)])
    async with Runtime.open("memory:") as runtime:
        other = Cantrip(scripted(lambda _: done(LONG)), circle=Circle(["done"], [max_turns(2)]))
        await runtime.invoke(other, "go", name="other")
        episode = await runtime.cast(Cantrip(crystal, circle=circle), "go")
        recorded = str(runtime.loom.turns(episode.entity_id)[-2].observations[-1].result)
    (text,) = shown(crystal.invocations[-1])
    assert {f"{n:09}" for n in range(30_000)} <= set(re.findall(r"\d{9}", recorded))
    assert "BEGIN" in text[:200]
    assert "THE END" in text[-200:]
    assert "characters left out: 6,000 of a result are shown" in text
    assert len(text) <= 6_000  # a quarter of the window


@pytest.mark.parametrize(
    ("name", "window", "limit"),
    [
        ("read_log", None, 100_000),
        ("read_log", 10**6, 100_000),
        ("read_log", 8_000, 6_000),
        ("read_log", 100, LEAST_SHOWN),
        ("read_little", None, 1_000),
        ("read_little", 8_000, 1_000),
        ("read_all", 8_000, len(LONG)),
    ],
)
async def test_a_result_is_shown_up_to_the_bound_of_its_gate(name: str, window: int | None, limit: int) -> None:
    crystal = scripted([say(name), done("ok")], **({} if window is None else {"context_window": window}))
    circle = Circle(["done", read_log, read_little, read_all], [max_turns(3)])
    async with Runtime.open("memory:") as runtime:
        await runtime.cast(Cantrip(crystal, circle=circle), "go")
    (text,) = shown(crystal.invocations[-1])
    assert limit * 0.6 < len(text) <= limit


@pytest.mark.parametrize("value", [0, -1, True, "all", 1.5])
def test_a_bound_that_is_no_number_of_characters_is_refused(value: Any) -> None:
    with pytest.raises(InvalidCantrip, match="gate read_log: max_shown: expected a whole number"):
        read_log.with_(max_shown=value)
    with pytest.raises(InvalidCantrip, match="server library: max_shown: expected a whole number"):
        inproc("library", library(), max_shown=value)


async def test_the_tools_of_a_server_have_its_bound() -> None:
    crystal = scripted([say("library__find"), done("ok")])
    circle = Circle(["done", inproc("library", library(), max_shown=500)], [max_turns(3)])
    async with Runtime.open("memory:") as runtime:
        await runtime.cast(Cantrip(crystal, circle=circle), "go")
    assert len(shown(crystal.invocations[-1])[0]) <= 500


async def test_long_results_do_not_bring_a_fold_nearer_than_what_is_shown_of_them() -> None:
    crystal = scripted([say("read_log"), say("read_log"), done("ok")], context_window=20_000)
    async with Runtime.open("memory:") as runtime:
        episode = await runtime.cast(Cantrip(crystal, circle=Circle(["done", read_log], [max_turns(4)])), "go")
        records = runtime.loom.records(episode.entity_id)
    assert "Folded" not in [type(record).__name__ for record in records]


texts = st.text(st.characters(codec="utf-8"), max_size=3_000)


@given(texts, st.integers(1, 2_000), st.booleans(), st.none() | st.integers(LEAST_SHOWN, 2_000))
def test_a_long_result_is_shown_by_its_beginning_and_its_end(
    text: str, most: int, recall: bool, squeezed: int | None
) -> None:
    bound = ShownBound(most, recall=recall, squeezed=squeezed)
    message = Message("tool", text, (), 'call "1"', "read")
    partial = bound.apply(0, message)
    if partial is message:
        assert len(text) <= min(most, squeezed or most)
        return
    before, _, rest = (partial.content or "").rpartition(" characters left out: ")
    before, _, missing = before.rpartition("\n[")
    half = len(before)
    note, end = rest[: -half - 2] if half else rest[:-2], rest[len(rest) - half :]
    assert text.startswith(before)
    assert text.endswith(end)
    assert missing == f"{len(text) - 2 * half:,}"
    assert ("recall returns them" in note) == recall


class TestRecall:
    """The gate that reads the rest."""

    @staticmethod
    def read_rest(context: Sequence[Message]) -> object:
        """Read a long result, then all that was left out of it, as its note says."""
        results = shown(context)
        if not results:
            return {"tool_calls": [{"id": "read/1", "gate": "read_log", "args": {}}]}
        if len(results) > 1:
            return done(results[-1])
        note = results[0][results[0].index("recall returns them:") :]
        _, begin, end = (part.split("=")[1] for part in note[: note.index("]")].split(", "))
        return say("recall", call="read/1", **{"from": int(begin), "to": min(int(end), int(begin) + 100)})

    async def test_recall_reads_what_the_note_names(self) -> None:
        crystal = scripted(self.read_rest, context_window=8_000)
        circle = Circle(["done", "recall", read_log], [max_turns(5)])
        async with Runtime.open("memory:") as runtime:
            result = (await runtime.cast(Cantrip(crystal, circle=circle), "go")).result
        before = shown(crystal.invocations[1])[0].partition("\n[")[0]
        assert before + result == LONG[: len(before) + 100]

    @pytest.mark.parametrize(
        ("args", "result", "is_error"),
        [
            ({"call": "c", "from": 5, "to": 14}, "000000000", False),
            ({"call": "c", "from": len(LONG) - 7}, "THE END", False),
            ({"call": "c", "to": 5}, "BEGIN", False),
            ({"call": "c", "from": len(LONG) - 3, "to": 10**9}, "END", False),
            ({"call": "c", "from": len(LONG)}, "expected a part of the 300,012 characters", True),
            ({"call": "c", "from": 7, "to": 7}, "expected a part of the 300,012 characters", True),
            ({"call": "d"}, "expected the id of an earlier call", True),
            ({"call": "c", "from": -1}, "from", True),
            ({}, "recall: ", True),
        ],
    )
    async def test_recall_returns_a_part_of_a_result_or_an_error(self, args: Any, result: str, is_error: bool) -> None:
        read = {"tool_calls": [{"id": "c", "gate": "read_log", "args": {}}]}
        crystal = scripted([read, say("recall", **args), done("ok")])
        async with Runtime.open("memory:") as runtime:
            circle = Circle(["done", "recall", read_log], [max_turns(5)])
            episode = await runtime.cast(Cantrip(crystal, circle=circle), "go")
        observation = episode.thread[1].observations[0]
        assert observation.is_error == is_error
        assert result in observation.result if is_error else result == observation.result

    async def test_recall_reads_folded_results_and_those_that_a_fork_inherited(self) -> None:
        read = {"tool_calls": [{"id": "c", "gate": "read_log", "args": {}}]}
        recall = say("recall", call="c", to=5)
        says = [read, *[say("echo", text="x")] * 4, recall, done("ok"), recall, done("ok")]
        circle = Circle(["done", "recall", "echo", read_log], [max_turns(9)])
        cantrip = Cantrip(scripted(says), circle=circle, folding=Folding(2))
        async with Runtime.open("memory:") as runtime:
            first = await runtime.cast(cantrip, "go")
            fork = await runtime.fork(first.thread[-1].id, intent="again", cantrip=cantrip)
        assert [first.thread[-2].observations[0].result, fork.thread[-2].observations[0].result] == ["BEGIN", "BEGIN"]

    async def test_a_program_calls_recall(self) -> None:
        says = [{"code": "text = read_log()\nprint(recall('call_1_1', **{'to': 5}))"}, {"code": "done('ok')"}]
        circle = Circle(["done", "recall", read_log], [max_turns(5)], medium="python")
        async with Runtime.open("memory:") as runtime:
            episode = await runtime.cast(Cantrip(scripted(says), circle=circle), "go")
        assert episode.thread[0].observations[-1].result["output"].strip() == "BEGIN"

    async def test_a_note_does_not_name_a_gate_that_the_circle_lacks(self) -> None:
        crystal = scripted([say("read_little"), done("ok")])
        async with Runtime.open("memory:") as runtime:
            await runtime.cast(Cantrip(crystal, circle=Circle(["done", read_little], [max_turns(5)])), "go")
        assert "recall" not in shown(crystal.invocations[-1])[0]
