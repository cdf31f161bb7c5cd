"""The roles of docs/cluster.md: what each of them may do, with a real server."""

import re
from pathlib import Path

import psycopg
import pytest

from cantrip_actors import LoomError, Node, Runtime
from cantrip_actors.loom import open_store, verify_loom
from tests.loom import postgres
from tests.runtime.test_cluster import DESK

pytestmark = [pytest.mark.real_time, pytest.mark.rule("N-86")]

PAGE = Path(__file__).parent.parent.parent / "docs" / "cluster.md"


async def place() -> str:
    """A loom with an entity, a node's tables, and the roles as the page makes them."""
    url = postgres.fresh()
    async with Runtime.open(url, cantrips=[DESK], node=Node("owner")) as runtime:
        await (await runtime.invoke(DESK, "begin", name="x")).episode()
    schema = url.rpartition("=")[2]
    (made,) = re.findall(r"```sql\n(.*?create role.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    with psycopg.connect(postgres.server(), autocommit=True) as owner:
        owner.execute(re.sub(r"\bloom_(?=reader|sender|worker)", f"{schema}_", made).replace("cantrip", schema))
    return url


def as_role(url: str, role: str) -> str:
    return re.sub(r"user=\w+", f"user={url.rpartition('=')[2]}_{role}", url)


async def test_a_worker_runs_the_intents_of_a_sender() -> None:
    url = await place()
    async with (
        Runtime.open(as_role(url, "worker"), cantrips=[DESK], node=Node("w1")),
        Runtime.open(as_role(url, "sender")) as sender,
    ):
        receipt = await sender.entity("x").post("work")
        assert (await receipt.episode()).result == "work"
        submitted = await sender.submit("desk", "other work")
        assert (await submitted.episode()).result == "other work"


async def test_a_sender_cannot_run_entities() -> None:
    url = await place()
    async with Runtime.open(as_role(url, "sender")) as sender:
        with pytest.raises(LoomError, match="permission denied"):
            await sender.cast(DESK, "work")


async def test_a_reader_can_read_and_cannot_write() -> None:
    url = await place()
    with open_store(as_role(url, "reader"), read_only=True) as store:
        assert verify_loom(store).ok
    async with Runtime.open(as_role(url, "reader")) as reader:
        with pytest.raises(LoomError, match="permission denied"):
            await reader.entity("x").post("work")
