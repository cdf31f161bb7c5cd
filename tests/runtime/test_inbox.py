"""The inbox of an entity: mail is durable before its sender gets a reply, and is taken exactly once, in order."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors import (
    Cantrip,
    CantripError,
    Entity,
    EntityEnded,
    Episode,
    Image,
    InboxFull,
    LoomError,
    Runtime,
    scripted,
)
from cantrip_actors.loom import DamagedLoom, open_store
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import MailRefused
from cantrip_actors.runtime.mail import inbox, inboxes
from cantrip_actors.runtime.mail.inbox import PAGE
from cantrip_actors.testing import Crash, Process
from cantrip_actors.wards import max_turns
from supervisors.testing import virtual
from tests.exhaustive import EXHAUSTIVE, part
from tests.loom import postgres
from tests.pictures import png
from tests.runtime.kills import attempt, intents
from tests.runtime.spells import cantrip, done


def repeat(context: Any) -> Any:
    """Answer with the intent."""
    return done(context[-1].content)


async def slowly(context: Any) -> Any:
    """Answer with the intent, after ten seconds."""
    return {**repeat(context), "delay": 10.0}


async def think(_: Any) -> Any:
    """Answer after a very long time."""
    return {**done("at last"), "delay": 10_000.0}


SPELL = cantrip(scripted(repeat, record=False))
ENDLESS = cantrip(scripted(think, record=False), wards=(max_turns(2),))  # other content
SLOW = cantrip(scripted(slowly, record=False))


async def begun(url: str, spell: Cantrip = SPELL) -> str:
    """Return the id of an idle entity called "x" in this loom, which no process runs."""
    async with Runtime.open(url, cantrips=[spell]) as runtime:
        entity = await runtime.invoke(spell, "start", name="x")
        await entity.episode()
        return entity.id


@pytest.fixture(params=["sqlite", "jsonl"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path / 'loom'}"


# Kills at every write


class Senders:
    """Two senders: `a` posts with keys and does not wait, `b` sends without keys and waits for each episode."""

    def __init__(self) -> None:
        self.accepted: list[str] = []
        self.unknown: list[str] = []
        """Intents whose sender got an error: they may have been accepted."""

    async def work(self, runtime: Runtime, of_each: int = 3) -> None:
        entity = runtime.entity("x")
        assert entity is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._post, entity, of_each)
            tasks.start_soon(self._send, entity, of_each)

    async def _post(self, entity: Entity, number: int) -> None:
        for n in range(number):
            self._note(f"a{n}", await attempt(entity.post(f"a{n}", key=f"key {n}")))

    async def _send(self, entity: Entity, number: int) -> None:
        for n in range(number):
            self._note(f"b{n}", await attempt(entity.send(f"b{n}")))

    def _note(self, intent: str, result: object) -> None:
        (self.unknown if isinstance(result, Exception) else self.accepted).append(intent)

    def check(self, taken: Sequence[str]) -> None:
        """Assert that each accepted intent was taken exactly once, in order per sender, and none was made up."""
        assert len(taken) == len(set(taken))
        assert set(self.accepted) <= set(taken) <= {*self.accepted, *self.unknown}
        for sender in "ab":
            own = [intent for intent in taken if intent.startswith(sender)]
            assert own == sorted(own)


async def killed_at(url: str, kills: Sequence[tuple[int, bool]]) -> None:
    """Kill one process after the other at these writes; the last one finishes the work."""
    senders = Senders()
    entity_id = await begun(url)
    for n, (at, durable) in enumerate(kills):
        async with Runtime.open(url, cantrips=[SPELL], recover="resume") as runtime:
            Process(Crash(at, durable)).attach(runtime)
            if n == 0:
                await senders.work(runtime)
            else:
                await anyio.sleep(2)
    async with Runtime.open(url, cantrips=[SPELL], recover="resume") as runtime:
        assert (await runtime.entity("x").send("last")).result == "last"
        first, *taken, last = intents(runtime, entity_id)
        assert (first, last) == ("start", "last")
        senders.check(taken)
        assert len(runtime.loom.turns(entity_id)) == len(taken) + 2


@pytest.mark.rule("C-10")
@pytest.mark.parametrize("durable", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("at", part(range(1, 31), 3))
async def test_each_accepted_mail_is_handled_once_when_its_process_is_killed_at_any_write(
    url: str, at: int, durable: bool
) -> None:
    await killed_at(url, [(at, durable)])


@pytest.mark.rule("C-10")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("store", ["sqlite", "jsonl"])
def test_each_accepted_mail_is_handled_once_when_three_processes_are_killed(
    backend: str, store: str, tmp_path: Path
) -> None:
    number = 0

    @settings(max_examples=10)
    @given(st.lists(st.tuples(st.integers(1, 15), st.booleans()), min_size=2, max_size=3))
    def holds(kills: list[tuple[int, bool]]) -> None:
        nonlocal number
        number += 1
        name, options = virtual(backend)
        anyio.run(killed_at, f"{store}:{tmp_path / str(number)}", kills, backend=name, backend_options=options)

    holds()


@pytest.mark.rule("C-10")
@pytest.mark.parametrize(("at", "durable"), [(1, True), (2, False), (5, True)])
async def test_each_accepted_mail_in_postgres_is_handled_once(at: int, durable: bool) -> None:
    await killed_at(postgres.fresh(), [(at, durable)])


@pytest.mark.rule("C-10")
async def test_refused_mail_is_never_handled(url: str) -> None:
    """Mail that came too late for an interrupted episode, mail of an entity that ended, and a key that was used."""
    entity_id = await begun(url, SLOW)
    async with Runtime.open(url, cantrips=[SLOW]) as runtime:
        entity = runtime.entity("x")
        await entity.post("first", key="one")
        with pytest.raises(LoomError, match="was used"):
            await entity.post("second", key="one")
        late = await entity.post("third")
        await entity.stop()
        with pytest.raises(EntityEnded):
            await late.episode()
        assert late.state == "refused"
        with pytest.raises(EntityEnded):
            await entity.post("fourth")
    async with Runtime.open(url, cantrips=[SLOW], recover="resume") as runtime:
        await anyio.sleep(100)
        assert set(intents(runtime, entity_id)) <= {"start", "first"}


# More mail than one page

LONG = part([("sqlite", "asyncio"), ("sqlite", "trio"), ("jsonl", "asyncio"), ("jsonl", "trio")], 4)
"""Stores and backends for a test that takes seconds."""


@pytest.mark.rule("C-12", "C-10")
@pytest.mark.parametrize(("store", "anyio_backend"), LONG, indirect=["anyio_backend"])
async def test_waiting_posts_of_three_pages_are_handled_in_order_across_processes(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE if EXHAUSTIVE else 200
    monkeypatch.setattr(inbox, "PAGE", page)
    url, count = f"{store}:{tmp_path / 'loom'}", 2 * page + 100
    entity_id = await begun(url)
    wanted = [f"{n}" for n in range(count)]
    async with Runtime.open(url) as runtime:  # it does not know the cantrip, so it only posts
        runtime._tree.store.max_waiting = 10 * count
        entity = runtime.get_entity(entity_id)
        for intent in wanted:
            await entity.post(intent)
        await entity.steer("mind the gap")
        assert not entity.loaded
    reached = anyio.Event()

    def policy(context: Any) -> Any:
        if context[-1].content == wanted[page + 50]:
            reached.set()
        return repeat(context)

    async with Runtime.open(url, cantrips=[cantrip(scripted(policy, record=False))]) as runtime:
        await reached.wait()
        runtime.entity("x")._find_cell().actor.kill()
        await anyio.lowlevel.checkpoint()
        assert page + 50 < len(intents(runtime, entity_id)) < count
    async with Runtime.open(url, cantrips=[SPELL], passivate_after=0.001) as runtime:
        runtime._tree.store.max_waiting = 10 * count
        assert (await runtime.entity("x").send("last")).result == "last"
        assert intents(runtime, entity_id) == ["start", *wanted, "last"]


@pytest.mark.rule("C-12", "C-10")
async def test_more_posts_than_one_page_are_handled_in_order_by_a_working_entity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "PAGE", 20)

    async def policy(context: Any) -> Any:
        return {**repeat(context), "delay": 1.0}

    async with Runtime.open(passivate_after=1) as runtime:
        runtime._tree.store.max_waiting = 20
        entity = await runtime.invoke(cantrip(scripted(policy, record=False)), "start")
        wanted: list[str] = []
        while len(wanted) < 150:
            intent = f"{len(wanted)}"
            try:
                await entity.post(intent)
                wanted.append(intent)
            except InboxFull:
                await anyio.sleep(len(wanted) % 7)
                runtime._tree.store.max_waiting = 20 + len(wanted) % 60
        assert (await entity.send("last")).result == "last"
        assert intents(runtime, entity.id) == ["start", *wanted, "last"]
        await anyio.sleep(10)
        assert not entity.loaded
        assert (await entity.send("again")).result == "again"


@pytest.mark.rule("C-12")
async def test_every_intent_is_handled_if_other_mail_fills_the_first_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "PAGE", 4)
    url = f"sqlite:{tmp_path / 'loom'}"
    entity_id = await begun(url)
    wanted = [f"{n}" for n in range(10)]
    async with Runtime.open(url) as runtime:
        mailboxes, entity = runtime._tree.inboxes, runtime.get_entity(entity_id)
        for n in range(3):  # for a child that has ended
            await mailboxes.post(mailboxes.make_mail(f"child {n}", "steer", {"text": "hi"}, root=entity_id))
        for intent in wanted:
            await entity.post(intent)
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        await anyio.sleep(10)
        assert intents(runtime, entity_id) == ["start", *wanted]


@pytest.mark.rule("C-10")
async def test_a_tree_that_cannot_be_read_delays_no_mail_of_other_entities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise DamagedLoom("a record was changed")

    url = f"sqlite:{tmp_path / 'loom'}"
    entity_id = await begun(url)
    async with Runtime.open(url, cantrips=[SPELL], stranded_after=2.0) as runtime, Runtime.open(url) as other:
        broken = await other.start(ENDLESS, "go")
        monkeypatch.setattr(runtime._tree.inboxes, "_read_asks", fail)
        monkeypatch.setattr(inboxes, "find_stranding", fail)
        runtime._tree.inboxes.note_answer(broken.id)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_damage, runtime, broken.id)
            await anyio.sleep(5)
            receipt = await other.get_entity(entity_id).post("go")
            with anyio.fail_after(60):  # of virtual time
                await receipt.result()


async def expect_damage(runtime: Runtime, entity_id: str) -> None:
    with pytest.raises(DamagedLoom):
        await runtime.get_work(entity_id).result()


async def test_the_time_in_which_no_process_runs_an_entity_is_counted_anew_after_each_load() -> None:
    async def load() -> tuple[Sequence[Any], bool]:
        return (), False

    mailbox = inbox.Inbox(load, lambda: None)
    waiter = mailbox.expect("k", inbox.Waiter())
    assert mailbox.list_waiting_since(0.0, 60.0) == []
    await mailbox.open(lambda: None, lambda _: False)
    assert mailbox.list_waiting_since(100.0, 60.0) == []
    assert mailbox.list_waiting_since(160.0, 60.0) == [waiter]


# A full inbox


@pytest.mark.rule("C-13", "N-33")
async def test_a_full_inbox_refuses_intents_and_accepts_control_mail(url: str) -> None:
    async with Runtime.open(url, cantrips=[SLOW]) as runtime:
        runtime._tree.store.max_waiting = 5
        entity = await runtime.invoke(SLOW, "start", name="x")
        receipts = [await entity.post(f"{n}", key=f"{n}") for n in range(5)]
        for give in (entity.post, entity.send):
            with pytest.raises(InboxFull, match="5") as raised:
                await give("too much")
            assert raised.value.entity_id == entity.id
        assert (await entity.post("3", key="3")).key == "3"  # a repeat of mail that waits
        await entity.steer("hurry")
        await entity.interrupt("enough")
        assert (await entity.episode()).reason in ("interrupted", "terminated")
        assert [(await receipt.episode()).result for receipt in receipts] == [f"{n}" for n in range(5)]
        assert (await entity.send("now there is room")).result == "now there is room"
        assert intents(runtime, entity.id) == ["start", *"01234", "now there is room"]


@pytest.mark.rule("C-13")
async def test_1000_intents_may_wait_and_100_control_mails_besides() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(SLOW, "start")
        for n in range(1000):
            await entity.post(f"{n}")
        with pytest.raises(InboxFull):
            await entity.post("too much")
        for n in range(100):
            await entity.steer(f"note {n}")
        await entity.stop()


# Senders that are cancelled


@pytest.mark.rule("C-14")
@pytest.mark.parametrize("how", ["send", "post"])
@pytest.mark.parametrize("where", ["idle", "working", "unloaded", "hibernating"])
async def test_a_sender_that_is_cancelled_has_sent_once_or_not_at_all(tmp_path: Path, how: str, where: str) -> None:
    """Cancelled after each number of steps; then the same key and content returns the one episode."""
    async with Runtime.open(f"sqlite:{tmp_path / 'loom.db'}", passivate_after=3) as runtime:
        entity = await runtime.invoke(cantrip(scripted(slowly if where == "working" else repeat)), "start")
        await entity.episode()
        outcomes = set()
        for steps in part(range(25), 3):
            await anyio.sleep({"idle": 0.5, "working": 0.5, "hibernating": 2, "unloaded": 5}[where])
            if where == "working":
                await entity.post(f"before {steps}")
                await anyio.sleep(1)
            intent, key, is_sent = f"intent {steps}", f"key {steps}", []

            async def send(intent: str = intent, key: str = key, is_sent: list[bool] = is_sent) -> None:
                await (entity.send if how == "send" else entity.post)(intent, key=key)
                is_sent.append(True)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            await anyio.sleep(20 if where == "working" else 1)
            taken = intents(runtime, entity.id).count(intent)
            outcomes.add(taken)
            assert taken <= 1
            assert taken == 1 or not is_sent
            episode: Episode = await entity.send(intent, key=key)
            assert episode.result == intent
            assert intents(runtime, entity.id).count(intent) == 1
        assert outcomes == {0, 1}


@pytest.mark.rule("C-14")
async def test_a_sender_without_a_key_that_is_cancelled_has_sent_once_or_not_at_all() -> None:
    async with Runtime.open(passivate_after=3) as runtime:
        entity = await runtime.invoke(SPELL, "start")
        await entity.episode()
        for steps in range(25):
            for idle in (0.5, 2, 5):
                await anyio.sleep(idle)
                intent = f"{steps} after {idle}"
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(entity.send, intent)
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
                await anyio.sleep(1)
                assert intents(runtime, entity.id).count(intent) <= 1
        assert (await entity.send("last")).result == "last"
        assert not [one for one in runtime.loom.records(entity.id) if isinstance(one, MailRefused)]


@pytest.mark.rule("C-14", "C-10")
async def test_a_sender_that_dies_after_its_mail_is_durable_has_sent(url: str) -> None:
    entity_id = await begun(url, SLOW)
    async with Runtime.open(url) as runtime:
        await runtime.get_entity(entity_id).post("from afar", key="k")
    async with Runtime.open(url, cantrips=[SLOW]) as runtime:
        assert (await runtime.receipt("x", "k").episode()).result == "from afar"


@pytest.mark.rule("C-10")
async def test_a_runtime_that_drains_answers_its_callers_and_leaves_other_mail_to_the_next(url: str) -> None:
    results: list[Any] = []
    entity_id = await begun(url, SLOW)
    async with Runtime.open(url, cantrips=[SLOW]) as runtime, anyio.create_task_group() as tasks:
        entity = runtime.entity("x")

        async def send() -> None:
            results.append((await entity.send("awaited")).result)

        await entity.post("working")
        tasks.start_soon(send)
        await anyio.sleep(1)
        receipt = await entity.post("for the next")
        assert await runtime.drain(60)
        await anyio.sleep(0.1)
        assert (results, receipt.state) == (["awaited"], "waiting")
    async with Runtime.open(url, cantrips=[SLOW]) as runtime:
        assert (await runtime.receipt("x", receipt.key).episode()).result == "for the next"
        assert intents(runtime, entity_id) == ["start", "working", "awaited", "for the next"]


# Mail that cannot be taken, and remains of mail


@pytest.mark.rule("N-34")
@pytest.mark.parametrize(
    ("bad", "why"),
    [("intent without a text", "cannot carry out mail of kind 'intent'"), ("image without bytes", "are not to be had")],
)
async def test_mail_that_cannot_be_taken_fails_with_its_reason_and_delays_no_other_mail(
    tmp_path: Path, bad: str, why: str
) -> None:
    def policy(context: Any) -> Any:
        return done("seen") if [image.data for image in context[-1].images] else repeat(context)

    spell = cantrip(scripted(policy, record=False))
    url = f"sqlite:{tmp_path / 'loom'}"
    entity_id = await begun(url, spell)
    if bad == "image without bytes":
        async with Runtime.open(url) as sender:
            await sender.entity("x").post(["look", Image(png(8, 8))], key="bad")
            sender._tree.store._transact(lambda db: db.execute("delete from blobs"))
    else:  # another version may have posted it
        with open_store(url) as store:
            store.post([Mail(entity_id=entity_id, key="bad", kind="intent", body={"goal": "look"})])
    async with Runtime.open(url, cantrips=[spell]) as runtime:
        behind = await runtime.entity("x").post("behind")
        assert (await behind.episode()).result == "behind"
        with pytest.raises(CantripError, match=why):
            await runtime.receipt("x", "bad").episode()


@pytest.mark.rule("N-35")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_waiting_mail_is_redacted_at_rest_and_empty_once_it_is_taken(kind: str, tmp_path: Path) -> None:
    url = postgres.fresh() if kind == "postgres" else f"sqlite:{tmp_path / 'loom'}"
    await begun(url)
    async with Runtime.open(url, secrets=["open sesame"], redact="at_rest") as sender:
        receipt = await sender.entity("x").post("say open sesame", key="k")
        ((line,),) = sender._tree.store._fetch_rows("select line from mail where taken is null")
        assert "say " in str(line)
        assert "sesame" not in str(line)
        async with Runtime.open(url, cantrips=[SPELL], secrets=["open sesame"], redact="at_rest"):
            assert "sesame" not in (await receipt.episode()).result
        assert sender._tree.store._fetch_rows("select 1 from mail where line <> ''") == []
