"""Mail that still waits can be taken back, from any process; afterwards its entity never sees it."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_actors import (
    Cantrip,
    Entity,
    EntityEnded,
    InboxFull,
    InvalidIntent,
    LoomError,
    Receipt,
    Runtime,
    RuntimeClosed,
    Withdrawn,
    scripted,
)
from cantrip_actors.gates import ask
from cantrip_actors.loom import verify_loom
from cantrip_actors.records.mail import Mail
from cantrip_actors.records.records import IntentGiven, MailRefused
from cantrip_actors.testing import Crash, Process
from supervisors.testing import virtual
from tests.exhaustive import part
from tests.loom import postgres
from tests.runtime.kills import attempt, intents
from tests.runtime.spells import cantrip, done, say


async def policy(context: Any) -> Any:
    """Answer with the intent, after ten seconds if it says so, or ask the entity "x"."""
    last = context[-1]
    if last.role == "tool":
        return done(last.content)
    if last.content == "ask":
        return say("ask", to="x", message="what?")
    return {**done(last.content), "delay": 10.0 if last.content.startswith("slow") else 0.0}


SPELL = cantrip(scripted(policy, record=False), ask.with_(to=["x"]))


@pytest.fixture(params=["sqlite", "jsonl", "memory", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a loom, in each kind of store."""
    if request.param == "postgres":
        return postgres.fresh()
    return "memory:" if request.param == "memory" else f"{request.param}:{tmp_path / 'loom'}"


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a loom that several processes may write."""
    return postgres.fresh() if request.param == "postgres" else f"sqlite:{tmp_path / 'loom.db'}"


def withdrawals(runtime: Runtime, entity_id: str) -> list[MailRefused]:
    """Return the records of withdrawn mail."""
    return [one for one in runtime.loom.records(entity_id) if isinstance(one, MailRefused) and one.is_withdrawn]


def withdraw_first(runtime: Runtime, entity: Entity, key: str) -> None:
    """Let the store write a withdrawal right before the record that takes the mail with this key."""
    store = runtime._tree.store
    append = store.append

    def appended(records: Any, *args: Any, taken: Any = (), **more: Any) -> None:
        if taken and records[taken[0][0]].key == key:
            store.append = append  # type: ignore[method-assign]
            withdrawal = MailRefused(entity.id, key, "intent", "withdrawn", records[0].at, why="sold out")
            append([withdrawal], *args, taken=[(0, taken[0][1])])
        append(records, *args, taken=taken, **more)

    store.append = appended  # type: ignore[method-assign]


async def outcome_of(work: Awaitable[Any], seen: list[Any]) -> None:
    """Note the result of `work`, or its error."""
    seen.append(await attempt(work))


async def begun(runtime: Runtime, spell: Cantrip = SPELL) -> Entity:
    """Return an idle entity called "x"."""
    entity = await runtime.invoke(spell, "start", name="x")
    await entity.episode()
    return entity


@pytest.mark.rule("C-19")
async def test_an_intent_that_waits_is_withdrawn_and_its_entity_never_sees_it(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await begun(runtime)
        await entity.post("slow")
        receipt = await entity.post("unwanted", key="k")
        behind = await entity.post("behind")
        assert await receipt.withdraw("sold out", by="anna") == "withdrawn"
        assert receipt.state == "withdrawn"
        assert (await behind.episode()).result == "behind"
        assert intents(runtime, entity.id) == ["start", "slow", "behind"]
        (record,) = withdrawals(runtime, entity.id)
        assert (record.key, record.mail, record.why, record.sender) == ("k", "intent", "sold out", "anna")
        assert verify_loom(runtime._tree.store).faults == []


@pytest.mark.rule("C-19")
@pytest.mark.parametrize("how", ["send", "post"])
async def test_a_sender_of_withdrawn_mail_gets_the_reason_at_once_and_again_with_its_key(url: str, how: str) -> None:
    seen: list[Any] = []

    async def give(entity: Entity) -> Any:
        return await (
            entity.send("unwanted", key="k") if how == "send" else (await entity.post("unwanted", key="k")).episode()
        )

    async with Runtime.open(url) as runtime, anyio.create_task_group() as tasks:
        entity = await begun(runtime)
        await entity.post("slow")
        tasks.start_soon(outcome_of, give(entity), seen)
        await anyio.sleep(1)
        await runtime.receipt("x", "k").withdraw("sold out", by="anna")
        await anyio.sleep(1)
        (error,) = seen
        assert isinstance(error, Withdrawn)
        assert (error.entity_id, error.key, error.by, error.why) == (entity.id, "k", "anna", "sold out")
        with pytest.raises(Withdrawn, match=r"withdrawn by anna before entity .* took it: sold out"):
            await give(entity)


@pytest.mark.rule("C-19")
async def test_an_intent_is_withdrawn_twice_with_one_record(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await begun(runtime)
        await entity.post("slow")
        receipt = await entity.post("unwanted")
        states: list[Any] = []
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(outcome_of, receipt.withdraw(), states)
        assert states == ["withdrawn"] * 5
        assert len(withdrawals(runtime, entity.id)) == 1


@pytest.mark.rule("C-19")
async def test_an_intent_that_was_taken_is_not_withdrawn(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await begun(runtime)
        working = await entity.post("slow")
        await anyio.sleep(1)
        assert await working.withdraw() == "working"
        assert (await working.episode()).result == "slow"
        assert await working.withdraw() == "settled"
        await entity.post("slow again")
        late = await entity.post("late")
        await anyio.sleep(1)
        await entity.stop()
        assert await late.withdraw() == "refused"
        with pytest.raises(EntityEnded):
            await late.episode()
        assert withdrawals(runtime, entity.id) == []


@pytest.mark.rule("C-19")
async def test_control_mail_has_no_receipt_before_and_after_it_is_taken(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await begun(runtime)
        await entity.post("slow")
        await anyio.sleep(1)
        await entity.steer("hurry", key="k")
        for _ in range(2):
            with pytest.raises(LoomError, match=r"'k' is that of a control message.*runtime\.has_mail"):
                runtime.receipt(entity, "k")
            assert runtime.has_mail(entity, "k")
            await entity.episode()


@pytest.mark.rule("C-19")
@pytest.mark.parametrize("given", [{"why": 5}, {"by": None}])
async def test_a_withdrawal_takes_texts_only(given: Any) -> None:
    async with Runtime.open() as runtime:
        entity = await begun(runtime)
        await entity.post("slow")
        receipt = await entity.post("next")
        with pytest.raises(InvalidIntent, match="expected a text"):
            await receipt.withdraw(**given)
        assert receipt.state == "waiting"


@pytest.mark.rule("C-19", "C-13")
async def test_a_withdrawal_makes_room_in_a_full_inbox(url: str) -> None:
    async with Runtime.open(url, max_waiting=2) as runtime:
        entity = await begun(runtime)
        await entity.post("slow")
        await anyio.sleep(1)
        receipts = [await entity.post(f"{n}") for n in range(2)]
        with pytest.raises(InboxFull):
            await entity.post("one more")
        await receipts[0].withdraw()
        assert (await (await entity.post("one more")).episode()).result == "one more"


# From other processes


@pytest.mark.rule("C-19")
async def test_mail_of_an_entity_that_no_process_runs_is_withdrawn_without_its_cantrip(url: str) -> None:
    if url == "memory:":
        pytest.skip("a loom in memory has one process")
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entity_id = (await begun(runtime)).id
    async with Runtime.open(url) as poster:
        await poster.entity("x").post("unwanted", key="k")
        await poster.entity("x").post("wanted", key="l")
    async with Runtime.open(url) as other:
        assert await other.receipt("x", "k").withdraw() == "withdrawn"
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        assert (await runtime.receipt("x", "l").episode()).result == "wanted"
        assert intents(runtime, entity_id) == ["start", "wanted"]
        with pytest.raises(Withdrawn):
            await runtime.receipt("x", "k").episode()


@pytest.mark.rule("C-19")
async def test_mail_is_withdrawn_while_another_process_runs_its_entity(shared: str) -> None:
    """The sender waits in the process that runs the entity, and gets the error long before the entity is idle."""
    seen: list[Any] = []
    async with Runtime.open(shared) as runtime, Runtime.open(shared) as other, anyio.create_task_group() as tasks:
        entity = await begun(runtime)
        await entity.post("slow")
        tasks.start_soon(outcome_of, entity.send("unwanted", key="k"), seen)
        await anyio.sleep(1)
        assert await other.receipt("x", "k").withdraw() == "withdrawn"
        await anyio.sleep(1)
        assert [type(one) for one in seen] == [Withdrawn]
        assert (await other.receipt("x", "k").withdraw()) == "withdrawn"
        assert (await entity.send("next")).result == "next"
        assert intents(runtime, entity.id) == ["start", "slow", "next"]


@pytest.mark.rule("C-19")
async def test_a_sender_in_a_third_process_learns_of_a_withdrawal(shared: str) -> None:
    seen: list[Any] = []
    async with (
        Runtime.open(shared) as runtime,
        Runtime.open(shared) as sender,
        Runtime.open(shared) as other,
        anyio.create_task_group() as tasks,
    ):
        entity = await begun(runtime)
        await entity.post("slow")
        receipt = await sender.entity("x").post("unwanted", key="k")
        tasks.start_soon(outcome_of, receipt.episode(), seen)
        await anyio.sleep(1)
        await other.receipt("x", "k").withdraw()
        await anyio.sleep(1)
        assert [type(one) for one in seen] == [Withdrawn]


@pytest.mark.rule("C-19")
async def test_an_entity_that_claims_withdrawn_mail_continues_with_the_next_mail(shared: str) -> None:
    """Its process has read the mail before another one withdraws it, and no caller there waits for it."""
    async with Runtime.open(shared) as runtime, Runtime.open(shared) as other:
        entity = await begun(runtime)
        await entity.post("slow")
        for n in range(3):
            await entity.post(f"{n}", key=f"{n}")
        await anyio.sleep(1)
        for n in (0, 2):
            assert await other.receipt("x", f"{n}").withdraw() == "withdrawn"
        receipt = await entity.post("last")
        assert (await receipt.episode()).result == "last"
        await anyio.sleep(1)
        assert entity.loaded
        assert (await entity.send("idle")).result == "idle"
        assert intents(runtime, entity.id) == ["start", "slow", "1", "last", "idle"]
        assert verify_loom(runtime._tree.store).faults == []


@pytest.mark.rule("C-19")
@pytest.mark.parametrize("where", ["here", "another process"])
async def test_a_withdrawal_at_any_moment_is_the_taking_or_the_withdrawal(tmp_path: Path, where: str) -> None:
    url, states = f"sqlite:{tmp_path / 'loom.db'}", set()
    async with Runtime.open(url) as runtime, Runtime.open(url) as other:
        entity = await begun(runtime)
        asked = runtime if where == "here" else other
        for steps in range(30):
            async with anyio.create_task_group() as tasks:
                if steps % 2:  # an idle entity takes at once what is sent
                    await entity.post(f"slow {steps}")
                tasks.start_soon(attempt, entity.send(f"{steps}", key=f"key {steps}"))
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                if asked.has_mail(entity, f"key {steps}"):
                    state = await asked.receipt(entity, f"key {steps}").withdraw()
                    states.add(state)
                    if state == "withdrawn":
                        assert f"{steps}" not in intents(runtime, entity.id)
                    else:
                        assert (await entity.send(f"{steps}", key=f"key {steps}")).result == f"{steps}"
            assert (await entity.send(f"after {steps}")).result == f"after {steps}"
        taken = intents(runtime, entity.id)
        assert len(taken) == len(set(taken))
        assert not {one.key for one in withdrawals(runtime, entity.id)} & {
            record.key for record in runtime.loom.records(entity.id) if isinstance(record, IntentGiven)
        }
    assert "withdrawn" in states or where == "another process"


@pytest.mark.rule("C-19")
async def test_a_claimed_intent_that_is_withdrawn_before_its_record_changes_nothing(url: str) -> None:
    """The writer gets the withdrawal before the record of the entity that has claimed the intent."""
    async with Runtime.open(url) as runtime:
        entity = await begun(runtime)
        withdraw_first(runtime, entity, "k")
        seen: list[Any] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome_of, entity.send("unwanted", key="k"), seen)
        assert [type(one) for one in seen] == [Withdrawn]
        assert (await entity.send("next")).result == "next"
        assert intents(runtime, entity.id) == ["start", "next"]
        assert len(runtime.loom.turns(entity.id)) == 2


@pytest.mark.rule("C-19", "N-34")
async def test_mail_that_cannot_be_taken_may_be_withdrawn_at_the_same_moment(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await begun(runtime)
        withdraw_first(runtime, entity, "bad")
        await runtime._tree.inboxes.post(Mail(entity_id=entity.id, key="bad", kind="intent", body={"goal": "look"}))
        assert (await entity.send("next")).result == "next"
        assert runtime.receipt(entity, "bad").state == "withdrawn"


# Kills


@pytest.mark.rule("C-19", "C-10")
@pytest.mark.parametrize("durable", [False, True], ids=["not written", "written"])
@pytest.mark.parametrize("at", part(range(1, 16), 5))
async def test_a_process_killed_at_any_write_has_withdrawn_or_has_not(tmp_path: Path, at: int, durable: bool) -> None:
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        entity_id = (await begun(runtime)).id
    claimed: set[str] = set()
    async with Runtime.open(url, cantrips=[SPELL]) as runtime:
        Process(Crash(at, durable)).attach(runtime)
        entity = runtime.entity("x")
        assert entity is not None
        receipts = [await attempt(entity.post("slow" if n == 0 else f"{n}", key=f"{n}")) for n in range(6)]
        for receipt in receipts[1::2]:
            if isinstance(receipt, Receipt) and await attempt(receipt.withdraw()) == "withdrawn":
                claimed.add(receipt.key)
        await anyio.sleep(20)
    async with Runtime.open(url, cantrips=[SPELL], recover="resume") as runtime:
        entity = runtime.entity("x")
        assert entity is not None
        assert (await entity.send("last")).result == "last"
        taken = intents(runtime, entity_id)[1:]
        gone = {one.key for one in withdrawals(runtime, entity_id)}
        assert len(taken) == len(set(taken))
        assert claimed <= gone
        assert not gone & set(taken)
        assert {one.key for one in receipts if isinstance(one, Receipt)} <= gone | {"0", *taken}
        assert verify_loom(runtime._tree.store).faults == []


@pytest.mark.rule("C-19", "C-10")
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_each_intent_is_worked_on_or_withdrawn_under_random_sends_and_withdrawals(
    backend: str, tmp_path_factory: Any
) -> None:
    """Two runtimes share a loom; senders wait in both, and both withdraw, at random times."""

    @settings(max_examples=15)
    @given(st.lists(ops, min_size=1, max_size=12))
    def holds(wanted: list[tuple[float, bool, str, int]]) -> None:
        url = f"sqlite:{tmp_path_factory.mktemp('w') / 'loom.db'}"
        name, options = virtual(backend)
        anyio.run(live, url, wanted, backend=name, backend_options=options)

    holds()


acts = st.sampled_from(["quick", "slow", "withdraw", "cancel"])
ops = st.tuples(st.sampled_from([0.0, 0.2, 3.0]), st.booleans(), acts, st.integers(0, 5))
"""How long to wait first, whether the runtime that runs the entity acts, what it does, and to which intent."""


async def live(url: str, wanted: list[tuple[float, bool, str, int]]) -> None:
    """Do all that, and check that each sender gets an answer that agrees with the log."""
    answers: dict[str, Any] = {}

    async def send(runtime: Runtime, key: str, what: str) -> None:
        answers[key] = await attempt(runtime.entity("x").send(f"{what} {key}", key=key))  # type: ignore[union-attr]

    with anyio.fail_after(3600):
        async with Runtime.open(url) as here, Runtime.open(url) as elsewhere, anyio.create_task_group() as tasks:
            entity, told, sent = await begun(here), dict[str, set[str]](), list[str]()
            for n, (pause, is_here, what, which) in enumerate(wanted):
                await anyio.sleep(pause)
                runtime = here if is_here else elsewhere
                if what in ("quick", "slow"):
                    tasks.start_soon(send, runtime, f"{n}", what)
                    sent.append(f"{n}")
                elif which < len(sent) and runtime.has_mail(entity, sent[which]):
                    receipt = runtime.receipt(entity, sent[which])
                    done = receipt.withdraw() if what == "withdraw" else receipt.cancel(now=True)
                    told.setdefault(sent[which], set()).add(await done)
            while len(answers) < len(sent):  # in virtual time
                await anyio.sleep(1)
            taken = [one.key for one in here.loom.records(entity.id) if isinstance(one, IntentGiven)][1:]
            gone = {one.key for one in withdrawals(here, entity.id)}
            assert sorted([*taken, *gone]) == sorted(sent)
            for key in sent:
                assert isinstance(answers[key], Withdrawn) == (key in gone)
                assert ("withdrawn" in told.get(key, ())) == (key in gone)
            assert verify_loom(here._tree.store).faults == []


# Cancelling what is under way


@pytest.mark.rule("C-19")
@pytest.mark.parametrize("now", [False, True])
async def test_cancel_withdraws_an_intent_that_waits_and_disturbs_no_other(url: str, now: bool) -> None:
    async with Runtime.open(url) as runtime:
        entity = await begun(runtime)
        other = await entity.post("slow, of another sender")
        receipt = await entity.post("unwanted")
        await anyio.sleep(1)
        assert await receipt.cancel("gone", now=now) == "withdrawn"
        assert (await other.episode()).result == "slow, of another sender"


@pytest.mark.rule("C-19", "C-17")
async def test_cancel_interrupts_its_own_episode(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await begun(runtime)
        receipt = await entity.post("slow")
        behind = await entity.post("behind")
        await anyio.sleep(1)
        assert await receipt.cancel("gone", now=True, by="anna") == "working"
        episode = await receipt.episode()
        assert (episode.reason, "gone" in (episode.summary or "")) == ("interrupted", True)
        assert (await behind.episode()).result == "behind"
        assert await receipt.cancel() == "settled"


@pytest.mark.rule("C-19", "C-17")
@pytest.mark.parametrize("steps", part(range(0, 24, 2), 2))
async def test_cancel_never_interrupts_the_next_episode(steps: int) -> None:
    async with Runtime.open() as runtime:
        entity = await begun(runtime)
        receipt = await entity.post("mine")
        behind = await entity.post("slow, of another sender")
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        await receipt.cancel(now=True)
        assert (await behind.episode()).result == "slow, of another sender"


@pytest.mark.rule("C-19")
async def test_the_first_intent_has_a_receipt_that_cancels_its_episode_only() -> None:
    async with Runtime.open() as runtime:
        entity = await runtime.invoke(SPELL, "slow", name="x")
        first = runtime.receipt("x", "")
        assert first.state == "working"
        assert await first.cancel(now=True) == "working"
        assert (await first.episode()).reason == "interrupted"
        behind = await entity.post("slow again")
        assert await first.cancel(now=True) == "settled"
        assert (await behind.episode()).result == "slow again"


@pytest.mark.rule("C-19", "C-16")
async def test_an_entity_that_asks_observes_that_its_question_was_withdrawn() -> None:
    async with Runtime.open() as runtime:
        entity, seen = await begun(runtime), list[Any]()
        await entity.post("slow")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome_of, runtime.cast(SPELL, "ask"), seen)
            await anyio.sleep(1)
            (waiting,) = [one.mail for one in runtime._tree.store.pending(entity.id)]
            await runtime.receipt(entity, waiting.key).withdraw("no answers today")
        assert "was withdrawn before entity" in seen[0].result
        assert "no answers today" in seen[0].result


@pytest.mark.rule("C-19", "N-35")
async def test_the_reason_of_a_withdrawal_is_redacted_at_rest() -> None:
    async with Runtime.open(secrets=["open sesame"], redact="at_rest") as runtime:
        entity = await begun(runtime)
        await entity.post("slow")
        receipt = await entity.post("unwanted")
        await receipt.withdraw("open sesame")
        (record,) = withdrawals(runtime, entity.id)
        assert "sesame" not in (record.why or "")
        with pytest.raises(Withdrawn) as raised:
            await receipt.episode()
        assert "sesame" not in f"{raised.value}{raised.value.why}"


@pytest.mark.rule("C-19")
@pytest.mark.parametrize("method", ["withdraw", "cancel"])
async def test_nothing_is_withdrawn_after_the_runtime_has_closed(method: str) -> None:
    async with Runtime.open() as runtime:
        entity = await begun(runtime)
        receipt = await entity.post("slow")
    work: Callable[[], Awaitable[Any]] = getattr(receipt, method)
    with pytest.raises(RuntimeClosed, match="not open"):
        await work()


@pytest.mark.rule("C-19")
async def test_an_entity_stays_loaded_when_the_last_intent_is_withdrawn_as_it_takes_it(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await begun(runtime)
        withdraw_first(runtime, entity, "k")
        with pytest.raises(Withdrawn):
            await (await entity.post("unwanted", key="k")).episode()
        await anyio.sleep(1)
        assert runtime._tree.living.get(entity.id) is not None
        assert (await entity.send("next")).result == "next"


@pytest.mark.rule("C-19")
async def test_withdrawing_reads_no_more_records_when_many_intents_were_withdrawn_before(url: str) -> None:
    async with Runtime.open(url) as runtime:
        entity = await begun(runtime)
        await entity.post("slow")
        receipts = [await entity.post(f"unwanted {n}") for n in range(60)]
        store, read = runtime._tree.store, list[int]()
        records = store.records

        def count(*given: Any, **options: Any) -> Any:
            found = records(*given, **options)
            read.append(len(found))
            return found

        store.records = count  # type: ignore[method-assign]
        assert [await one.withdraw() for one in reversed(receipts)] == ["withdrawn"] * 60
        assert sum(read) <= 2 * 60


async def test_a_withdrawal_in_another_process_costs_no_reading_while_an_episode_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:{tmp_path / 'loom'}"
    async with Runtime.open(url, cantrips=[SPELL]) as runtime, Runtime.open(url) as other:
        entity = await runtime.invoke(SPELL, "slow", name="x")
        receipt = await entity.post("later")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(entity.episode)
            await anyio.sleep(1)
            assert await other.get_work(receipt.id).withdraw() == "withdrawn"
            await anyio.sleep(2)
            read = list[str]()
            for name in ("records", "pending"):
                monkeypatch.setattr(runtime._tree.store, name, lambda *_, name=name, **__: read.append(name) or [])
            await anyio.sleep(5)
            monkeypatch.undo()
        assert read == []
