"""What a caller acts on is what was written: reads of a changed record raise DamagedLoom, in every store (Z-14)."""

from pathlib import Path

import pytest

from cantrip_actors import Cantrip, Circle, Runtime, scripted
from cantrip_actors.loom import DamagedLoom, open_store
from cantrip_actors.loom.integrity.verify import verify_loom
from cantrip_actors.loom.reading.search import Query, search
from cantrip_actors.loom.reading.statistics import statistics
from cantrip_actors.loom.reading.view import make_unchecked, open_loom
from cantrip_actors.wards import max_depth, max_turns
from tests.loom.test_store import LASTING, anywhere

pytestmark = pytest.mark.rule("Z-14")

TRUE, FALSE = "the true answer", "the fake answer"


def think(context):
    intent, last = context[0].content, context[-1]
    if "delegate" in intent and last.role != "tool":
        return {"tool_calls": [{"gate": "call_agent", "args": {"intent": "work"}}]}
    return {"tool_calls": [{"gate": "done", "args": {"answer": TRUE}}]}


WORKER = Cantrip(scripted(think), circle=Circle(["done", "call_agent"], [max_turns(5), max_depth(1)]), name="worker")


def change(place, entity_id):
    """Change the answer in the records of an entity, as an editor of the file or a database would."""
    old, new, own = TRUE, FALSE, f'"entity":"{entity_id}"'
    if place.kind == "jsonl":
        path = Path(place.url.removeprefix("jsonl:"))
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line.replace(old, new) if own in line else line for line in lines))
        return
    with open_store(place.url) as store:
        number = f"(select no from entities where id = '{entity_id}')"
        statement = f"update records set body = replace(body, '{old}', '{new}') where entity = {number}"
        store._transact(lambda db: db.execute(statement))


async def cast_again(runtime, ids):
    return await runtime.cast(WORKER, "work", key="k")


async def cast_parent_again(runtime, ids):
    return await runtime.cast(WORKER, "delegate", key="parent")


async def submit_again(runtime, ids):
    return await (await runtime.submit("worker", "work", key="q")).episode()


async def ask_receipt(runtime, ids):
    return await runtime.receipt("desk", "mail").episode()


async def send_again(runtime, ids):
    return await runtime.get_entity("desk").send("work", key="mail")


async def read_episode(runtime, ids):
    return await runtime.get_entity("desk").episode()


async def fork(runtime, ids):
    return await runtime.fork(ids["turn"], intent="go on")


async def read_messages(runtime, ids):
    return await runtime.messages(ids["desk"])


def read_loom(read):
    async def work(runtime, ids):
        return await runtime.read(lambda: read(runtime.loom, ids))

    return work


READS = {
    "cast": cast_again,
    "cast of a parent": cast_parent_again,
    "submit": submit_again,
    "receipt": ask_receipt,
    "send": send_again,
    "episode": read_episode,
    "fork": fork,
    "messages": read_messages,
    "outcome": read_loom(lambda loom, ids: loom.outcome(ids["cast"])),
    "turns": read_loom(lambda loom, ids: loom.turns(ids["child"])),
    "list_turns": read_loom(lambda loom, ids: loom.list_turns(ids["cast"])),
    "turn": read_loom(lambda loom, ids: loom[ids["turn"]]),
    "thread": read_loom(lambda loom, ids: loom.thread(ids["turn"])),
    "lineage": read_loom(lambda loom, ids: loom.lineage(ids["turn"])),
    "records": read_loom(lambda loom, ids: loom.records(ids["cast"])),
}
"""Reads of entities whose records were changed."""


async def write(url):
    """Return the ids of entities that have ended, or are idle, and close the runtime."""
    async with Runtime.open(url, cantrips=[WORKER]) as runtime:
        cast = await runtime.cast(WORKER, "work", key="k")
        parent = await runtime.cast(WORKER, "delegate", key="parent")
        desk = await runtime.ensure("desk", WORKER)
        await desk.send("work", key="mail")
        submission = await runtime.submit("worker", "work", key="q")
        submitted = (await submission.episode()).entity_id
        (child,) = runtime.loom.below(parent.entity_id)
        return {
            "cast": cast.entity_id,
            "turn": cast.thread[-1].id,
            "parent": parent.entity_id,
            "child": child,
            "desk": desk.id,
            "submitted": submitted,
        }


@pytest.mark.parametrize("kind", LASTING)
async def test_reads_of_changed_records_raise_damaged_loom(kind):
    with anywhere(kind) as place:
        ids = await write(place.url)
        async with Runtime.open(place.url, cantrips=[WORKER]) as runtime:
            for read in READS.values():
                await read(runtime, ids)  # unchanged records are read
        for entity in ("cast", "child", "desk", "submitted"):
            change(place, ids[entity])
        with open_store(place.url, read_only=True) as store:
            assert not verify_loom(store).ok
        async with Runtime.open(place.url, cantrips=[WORKER], recover="list") as runtime:
            for name, read in READS.items():
                with pytest.raises(
                    DamagedLoom, match=r"record \d+ of its tree is not what was written|cannot be contin"
                ):
                    pytest.fail(f"{name} returned {await read(runtime, ids)!r}")


@pytest.mark.parametrize("kind", LASTING)
async def test_overviews_show_damaged_entities_with_the_others(kind):
    with anywhere(kind) as place:
        ids = await write(place.url)
        change(place, ids["cast"])
        async with Runtime.open(place.url, cantrips=[WORKER]) as runtime:
            page = await runtime.entities(limit=10)
            assert ids["cast"] in [row.id for row in page.items]
            assert runtime.loom.state(ids["cast"]) == "terminated"
            assert (await runtime.cast(WORKER, "delegate", key="parent")).result == TRUE
            assert any(hit.entity_id == ids["cast"] for hit in search(runtime.loom, Query(text="fake")))
            assert statistics(runtime.loom).turns == 7
            assert FALSE in repr(make_unchecked(runtime.loom).turns(ids["cast"]))


async def test_a_read_without_the_key_checks_nothing_and_with_it_everything(tmp_path):
    key = b"sixteen bytes and more"
    with open_store(f"sqlite:{tmp_path}/loom.db", seal_key=key):
        pass
    async with Runtime.open(f"sqlite:{tmp_path}/loom.db", seal_key=key) as runtime:
        entity_id = (await runtime.cast(WORKER, "work")).entity_id
    with open_store(f"sqlite:{tmp_path}/loom.db", seal_key=key) as store:
        store._transact(lambda db: db.execute(f"update records set body = replace(body, '{TRUE}', '{FALSE}')"))
    with open_loom(f"sqlite:{tmp_path}/loom.db", seal_key=False) as loom:
        assert loom.outcome(entity_id).result == FALSE
    with (
        open_loom(f"sqlite:{tmp_path}/loom.db", seal_key=key) as loom,
        pytest.raises(DamagedLoom, match="cannot be read"),
    ):
        loom.outcome(entity_id)
