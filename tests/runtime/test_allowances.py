"""What a caller, a tenant or all together may spend in a day or a month, wherever their work comes from (W-02)."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import pytest

from cantrip_actors import AllowanceSpent, Cantrip, Circle, Runtime, scripted
from cantrip_actors.runtime.loom.lease_renewal import LeaseRenewal
from cantrip_actors.runtime.mail.hints import Hints
from cantrip_actors.wards import max_turns

pytestmark = pytest.mark.rule("W-02")

SHOP = Cantrip(
    scripted(
        lambda context: {
            "tool_calls": [{"gate": "done", "args": {"answer": context[0].content}}],
            "usage": {"cost": 0.25},
        }
    ),
    circle=Circle(["done"], [max_turns(5)]),
    name="shop",
)


async def test_a_caller_begins_nothing_new_once_its_day_is_spent_until_the_next_one() -> None:
    async with Runtime.open(cantrips=[SHOP]) as runtime:
        runtime.set_allowance(0.5, by="anna")
        desk = await runtime.ensure("desk", SHOP)
        first = await runtime.cast(SHOP, "tea", by="anna", key="k")
        sent = await desk.send("tea", by="anna", key="s")
        turn, work = first.thread[-1].id, runtime.get_work(first.entity_id)
        attempts: dict[str, Any] = {
            "cast": lambda: runtime.cast(SHOP, "tea", by="anna"),
            "start": lambda: runtime.start(SHOP, "tea", by="anna", key="new"),
            "invoke": lambda: runtime.invoke(SHOP, "tea", by="anna"),
            "send": lambda: desk.send("tea", by="anna"),
            "post": lambda: desk.post("tea", by="anna", key="new"),
            "fork": lambda: runtime.fork(turn, intent="tea", by="anna"),
            "continue_with": lambda: work.continue_with("tea", by="anna"),
            "submit": lambda: runtime.submit("shop", "tea", by="anna"),
        }
        count = len(runtime.loom.entities())
        for attempt in attempts.values():
            with pytest.raises(AllowanceSpent, match=r"'anna' may have a cost of \$0.5 a day") as refused:
                await attempt()
            assert 0 < refused.value.retry_after <= 86_400
        assert len(runtime.loom.entities()) == count
        again = await runtime.cast(SHOP, "tea", by="anna", key="k"), await desk.send("tea", by="anna", key="s")
        assert [episode.entity_id for episode in again] == [first.entity_id, sent.entity_id]
        await runtime.cast(SHOP, "tea", by="ben")
        await anyio.sleep(refused.value.retry_after + 1)
        await runtime.cast(SHOP, "tea", by="anna")
        runtime.set_allowance(0.0, by="anna")
        with pytest.raises(AllowanceSpent):
            await runtime.cast(SHOP, "tea", by="anna")
        runtime.set_allowance(None, by="anna")
        await runtime.cast(SHOP, "tea", by="anna")


async def test_a_check_reads_each_record_once_however_many_entities_the_loom_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Runtime.open(cantrips=[SHOP]) as runtime:
        runtime.set_allowance(100.0)
        for _ in range(5):
            await runtime.cast(SHOP, "tea")
        store, read = runtime._tree.store, list[str]()
        for name in ("records", "records_after", "headers", "header", "tip", "life"):
            monkeypatch.setattr(store, name, partial(note, read, name, getattr(store, name)))
        await runtime.check_allowance()
        read.clear()
        await runtime.check_allowance()
        assert read == ["records_after"]


def note(calls: list[str], name: str, function: Any, *args: Any, **named: Any) -> Any:
    calls.append(name)
    return function(*args, **named)


async def test_the_runtime_needs_none_of_the_threads_of_its_service() -> None:
    class Silent:
        def listen(self, _: Any, stopped: Any) -> None:
            stopped.wait()

    threads = anyio.to_thread.current_default_thread_limiter()
    for _ in range(int(threads.total_tokens)):  # each waits for the runtime, for example
        await threads.acquire_on_behalf_of(object())
    async with Runtime.open(cantrips=[SHOP]) as runtime:
        runtime.set_allowance(1.0)
        with anyio.fail_after(600):  # of virtual time
            await runtime.cast(SHOP, "tea")
    for helper in (LeaseRenewal(lambda: None, 60.0), Hints(Silent(), lambda: None)):  # type: ignore[arg-type]
        helper.start()
        await helper.stop()


async def test_an_allowance_of_a_tenant_and_of_the_loom_counts_all_callers(tmp_path: Any) -> None:
    url = f"sqlite:{tmp_path}/loom.db"
    async with Runtime.open(url, cantrips=[SHOP]) as runtime:
        acme, other = runtime.tenant("acme"), runtime.tenant("other")
        acme.set_allowance(0.5, per="month")
        submission = await acme.submit("shop", "tea", by="anna")
        await submission.result()
        await acme.cast(SHOP, "tea", by="ben")
        with pytest.raises(AllowanceSpent, match=r"tenant 'acme' may have a cost of \$0.5 a month") as refused:
            await acme.cast(SHOP, "tea", by="carl")
        now = datetime.fromtimestamp(runtime._tree.read_time_of_day(), UTC)
        assert 0 < refused.value.retry_after <= (32 - now.day) * 86_400
        await other.cast(SHOP, "tea", by="ben")
    async with Runtime.open(url, cantrips=[SHOP]) as runtime:  # the spending of an earlier process
        runtime.set_allowance(0.7)
        for caller in (runtime, runtime.tenant("other")):
            with pytest.raises(AllowanceSpent, match="all callers together"):
                await caller.cast(SHOP, "tea")


@pytest.mark.parametrize("arguments", [{"most": -1.0}, {"most": float("nan")}, {"most": 1.0, "per": "week"}])
async def test_an_allowance_of_another_amount_or_period_is_refused(arguments: Any) -> None:
    async with Runtime.open() as runtime:
        with pytest.raises(ValueError, match=r"most|per"):
            runtime.set_allowance(**arguments)
