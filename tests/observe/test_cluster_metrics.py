"""What a node counts of its cluster, of mail and timers, and of the store (N-83)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, LoomError, Node, Queue, Runtime, scripted
from cantrip_actors.crystals import Limits, limited
from cantrip_actors.loom import Fenced
from cantrip_actors.loom.stores.nodes import NodeInfo
from cantrip_actors.machine.node import Renewed
from cantrip_actors.observe import Telemetry
from cantrip_actors.runtime.nodes.membership import Membership
from tests.runtime.spells import cantrip, done
from tests.runtime.test_cluster import answering, crashing

pytestmark = pytest.mark.rule("N-83")

DESK = answering(delay=3.0)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path}/loom.db"


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(otel=False)


def observed(
    url: str, telemetry: Telemetry, cantrip: Cantrip = DESK, queues: Sequence[Queue] = (), **more: Any
) -> Runtime:
    return Runtime.open(url, cantrips=[cantrip], telemetry=telemetry, queues=queues, node=Node("w1", **more))


def value(telemetry: Telemetry, name: str, *labels: str) -> float:
    return telemetry.counters.read_values(name)[labels]


async def test_a_node_shows_its_load_and_the_nodes_that_it_sees(url: str, telemetry: Telemetry) -> None:
    async with observed(url, telemetry, capacity=7), Runtime.open(url, cantrips=[DESK], node=Node("w2")):
        await anyio.sleep(5)
        assert value(telemetry, "cantrip.cluster.nodes", "living") == 2
        assert value(telemetry, "cantrip.node.capacity") == 7
        assert value(telemetry, "cantrip.node.busy") == 0


async def test_a_node_is_busy_while_it_works(url: str, telemetry: Telemetry) -> None:
    async with observed(url, telemetry, answering(delay=30.0)) as runtime:
        await runtime.submit("desk", "go")
        await anyio.sleep(5)
        assert value(telemetry, "cantrip.node.entities") == value(telemetry, "cantrip.node.busy") == 1


@pytest.mark.real_time
async def test_mail_is_measured_from_its_sending_to_its_taking_and_to_the_end(url: str, telemetry: Telemetry) -> None:
    desk = answering(delay=0.3)
    async with observed(url, telemetry, desk) as runtime:
        entity = await runtime.invoke(desk, "one", name="keeper")
        await entity.episode()
        receipts = [await entity.post("two"), await entity.post("three")]
        for receipt in receipts:
            await receipt.episode()
        waits = telemetry.counters.read_histograms()["cantrip.mail.wait"][("intent",)]
        durations = telemetry.counters.read_histograms()["cantrip.mail.duration"][()]
    assert (waits.count, durations.count) == (2, 2)
    assert waits.sum >= 0.3  # the second one waited for the first
    assert durations.sum >= 0.9


async def test_a_takeover_is_counted_and_the_time_without_an_owner_is_shown(url: str, telemetry: Telemetry) -> None:
    async with crashing(Runtime.open(url, cantrips=[DESK], node=Node("w0"))) as other:
        await other.invoke(DESK, "one", name="keeper")
        await anyio.sleep(1)
    async with observed(url, telemetry) as runtime:
        page = telemetry.prometheus().splitlines()
        assert "cantrip_node_late_renewals_total 0" in page
        with anyio.fail_after(60):
            while not value(telemetry, "cantrip.node.takeovers"):
                await anyio.sleep(1)
        assert value(telemetry, "cantrip.node.takeovers") == 1
        await runtime.entity("keeper").episode()
        await anyio.sleep(5)
        assert value(telemetry, "cantrip.cluster.unowned") == 0
        assert value(telemetry, "cantrip.cluster.unowned.longest") == 0


@pytest.mark.rule("N-50")
async def test_a_queue_shows_how_much_waits_and_runs(url: str, telemetry: Telemetry) -> None:
    queues = [Queue("reports", max_running=2)]
    async with observed(url, telemetry, answering(delay=100.0), queues=queues) as runtime:
        for n in range(5):
            await runtime.submit("desk", f"{n}", queue="reports")
        await anyio.sleep(30)
        assert value(telemetry, "cantrip.queue.waiting", "reports") == 3
        assert value(telemetry, "cantrip.queue.running", "reports") == 2
        assert runtime.inspect().queues == (("reports", 3, 2, 2, None, None),)


async def test_an_entity_that_no_node_serves_is_stranded_and_its_time_grows(url: str, telemetry: Telemetry) -> None:
    async with crashing(Runtime.open(url, cantrips=[DESK])) as first:
        await first.start(DESK, "go")
        await anyio.sleep(1)
    async with observed(url, telemetry, answering(name="other", turns=3)):
        await anyio.sleep(40)
        assert value(telemetry, "cantrip.cluster.unowned") == value(telemetry, "cantrip.cluster.stranded") == 1
        assert value(telemetry, "cantrip.cluster.unowned.longest") > 20
        assert value(telemetry, "cantrip.cluster.quarantined") == 0


async def test_a_late_timer_and_a_late_schedule_are_measured(url: str, telemetry: Telemetry) -> None:
    async with Runtime.open(url, cantrips=[DESK]) as first:
        entity = await first.invoke(DESK, "one", name="keeper")
        await entity.episode()
        await first.schedule("keeper", "wake up", every=100.0, id="alarm")
    await anyio.sleep(160)
    async with observed(url, telemetry):
        await anyio.sleep(10)
        lateness = telemetry.counters.read_histograms()["cantrip.timer.lateness"][()]
        assert lateness.count == 1
        assert 50 < lateness.sum < 70


async def test_a_submission_is_never_late(url: str, telemetry: Telemetry) -> None:
    async with observed(url, telemetry) as runtime:
        submission = await runtime.submit("desk", "go")
        await submission.episode()
        assert not telemetry.counters.read_histograms()["cantrip.timer.lateness"]


@pytest.mark.parametrize(("error", "why"), [(LoomError("away"), "unreachable"), (Fenced("taken"), "fenced")])
async def test_a_refused_append_is_counted(
    url: str, telemetry: Telemetry, error: LoomError, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with observed(url, telemetry) as runtime:

        def fail(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr(runtime._tree.store, "append", fail)
        with pytest.raises(LoomError):
            await runtime.start(DESK, "go")
        assert value(telemetry, "cantrip.loom.failures", "sqlite", why) >= 1


async def test_slices_of_shared_limits_are_counted_by_the_name_of_the_limits(telemetry: Telemetry) -> None:
    spell = cantrip(limited(scripted([done(1), done(2)]), Limits(requests_per_minute=1, shared="team")), name="desk")
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(spell, "go")
        await runtime.cast(spell, "go")
        drawn = telemetry.counters.read_values("cantrip.limits.draws")
        assert drawn["team", "drawn"] >= 2
        assert drawn["team", "refused"] >= 1


async def test_a_runtime_without_a_cluster_shows_no_cluster_metrics(telemetry: Telemetry) -> None:
    async with Runtime.open("memory:", telemetry=telemetry):
        assert not any(line.startswith("cantrip_node") for line in telemetry.prometheus().splitlines())


def test_a_renewal_after_half_of_the_ttl_is_late_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    membership = Membership(Node("w", beat=2, ttl=10), NodeInfo("w", 1))
    for later in (2.0, 5.1, 2.0):
        now[0] += later
        membership.advance(Renewed())
    assert (membership.take_late(), membership.take_late()) == (1, 0)
