"""Log lines and crash reports: what is in them, what is not, and that the library configures nothing."""

import io
import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog

from cantrip_actors import Cantrip, Circle, Companion, EntityCrashed, Here, Runtime, gate, scripted
from cantrip_actors.http.operations import dump_at_signal
from cantrip_actors.loom.memory.memory import MemoryStore
from cantrip_actors.observe import Telemetry
from cantrip_actors.observe.crashes import MOST_FILES, Crashes, read_crashes
from cantrip_actors.observe.lines import configure
from cantrip_actors.redact.redactor import Redactor
from cantrip_actors.runtime.circles.gates_actor import GatesActor
from cantrip_actors.runtime.entity.recorder import StepRecorder
from cantrip_actors.wards import max_turns
from supervisors import ActorRef, ChildSpec, Crash
from supervisors.events import BURST, Exited
from tests.observe.spans import Sdk
from tests.runtime.spells import cantrip, done, say
from tests.runtime.test_recovery import crash_at

SECRET = "sk-live-0123456789abcdefghij"


@pytest.fixture
def lines() -> Any:
    """Configure JSON lines; return what reads them."""
    before = structlog.get_config()
    was = structlog.is_configured()
    out = io.StringIO()
    configure("json", "info", out, Redactor({"key": SECRET}))
    yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    structlog.configure(**before) if was else structlog.reset_defaults()


@pytest.mark.rule("LOG-01")
def test_importing_and_running_configures_neither_structlog_nor_logging() -> None:
    code = (
        "import logging, anyio, structlog\n"
        "handlers, level = list(logging.root.handlers), logging.root.level\n"
        "from cantrip_actors import Cantrip, Circle, Runtime, gate, scripted\n"
        "from cantrip_actors.wards import max_turns\n"
        "from cantrip_actors.observe import Telemetry\n"
        "@gate\n"
        "def bad() -> str:\n"
        "    'Fail.'\n"
        "    raise KeyError('x')\n"
        "says = [{'tool_calls': [{'gate': 'bad', 'args': {}}]}, 'hi']\n"
        "async def main():\n"
        "    async with Runtime.open(telemetry=Telemetry(otel=False)) as runtime:\n"
        "        await runtime.cast(Cantrip(scripted(says), circle=Circle(['done', bad], [max_turns(3)])), 'go')\n"
        "anyio.run(main)\n"
        "assert not structlog.is_configured()\n"
        "assert (logging.root.handlers, logging.root.level) == (handlers, level)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)
    assert ran.stdout == ""
    assert "a gate raised an exception" in ran.stderr


@pytest.mark.rule("LOG-02")
async def test_json_lines_have_the_current_work_and_the_span(lines: Any) -> None:
    sdk = Sdk()

    @gate
    async def speak() -> str:
        """Say something to the log."""
        structlog.get_logger("mine").info("spoke", n=1)
        return "x"

    async with Runtime.open(telemetry=sdk.telemetry()) as runtime:
        episode = await runtime.tenant("acme").cast(cantrip([say("speak"), done(1)], speak, name="talker"), "go")
    (line,) = lines()
    span = sdk.one("execute_tool speak")
    assert line["timestamp"].endswith("Z")
    assert (line["level"], line["event"], line["logger"], line["n"]) == ("info", "spoke", "mine", 1)
    assert (line["entity_id"], line["cantrip"], line["tenant"]) == (episode.entity_id, "talker", "acme")
    assert (line["turn"], line["gate"]) == (episode.thread[0].id, "speak")
    assert (line["trace_id"], line["span_id"]) == (f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}")


@pytest.mark.rule("LOG-02")
async def test_a_line_of_a_companion_names_its_entity_when_the_gate_of_another_one_sent_the_intent(lines: Any) -> None:
    class Diary(Companion):
        async def begins(self, here: Here) -> None:
            structlog.get_logger("mine").info("begins", n=here.name)

    @gate
    async def tell() -> str:
        """Send an intent to another entity."""
        return str((await runtime.get_entity("other").send("go")).result)

    circle = Circle(["done"], [max_turns(3)], companion=Diary())
    async with Runtime.open() as runtime:
        other = await runtime.ensure("other", Cantrip(scripted([done(1)]), circle=circle, name="listener"))
        await runtime.cast(cantrip([say("tell"), done(1)], tell, name="talker"), "go")
    (line,) = lines()
    assert (line["n"], line["entity_id"], line["cantrip"]) == ("other", other.id, "listener")
    assert "gate" not in line


@pytest.mark.rule("LOG-02")
def test_lines_survive_surrogates_huge_values_and_odd_objects(lines: Any) -> None:
    log = structlog.get_logger("mine")
    log.info("odd", text="\ud800", thing=object(), list=[1, {2}])
    log.warning("huge", text="x" * 1_000_000, n=7)
    log.debug("not shown")
    odd, huge = lines()
    assert odd["text"] == "\ud800"
    assert huge["n"] == 7
    assert len(huge["text"]) < 11_000
    assert "more characters" in huge["text"]


@pytest.mark.rule("LOG-02")
def test_lines_survive_cycles_depth_long_keys_and_a_repr_that_raises(lines: Any) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError

    log = structlog.get_logger("mine")
    cycle: list[Any] = [1]
    cycle.append(cycle)
    deep: Any = "bottom"
    for _ in range(5_000):
        deep = {"x": [deep]}
    log.info("cycle", value=cycle, deep=deep, odd=Odd())
    log.info("key", **{"k" * 1_000_000: 1}, n=7)
    one, two = lines()
    assert one["value"] == [1, "…"]
    assert "bottom" not in json.dumps(one)
    assert "Odd" in one["odd"]
    assert two["n"] == 7
    assert len(json.dumps(two)) < 11_000


@pytest.mark.rule("LOG-02")
def test_an_exception_is_a_dict_without_the_values_of_variables(lines: Any) -> None:
    hidden = "THE-VALUE-OF-A-VARIABLE"
    try:
        raise KeyError("x")
    except KeyError:
        structlog.get_logger().exception("failed", size=len(hidden))
    (line,) = lines()
    assert line["exception"][0]["exc_type"] == "KeyError"
    assert hidden not in json.dumps(line)


@pytest.mark.rule("LOG-03")
def test_secrets_are_redacted_in_every_part_of_a_line(lines: Any) -> None:
    log = structlog.get_logger()
    said = f"event {SECRET}"
    log.info(said, value=SECRET, deep={"list": [SECRET]}, **{f"key {SECRET}": 1})
    try:
        raise KeyError(SECRET)
    except KeyError:
        log.exception("failed")
    assert len(lines()) == 2
    assert SECRET not in json.dumps(lines())


@pytest.mark.rule("LOG-05")
async def test_the_events_of_a_crash_report_show_the_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    crash_at(monkeypatch, StepRecorder, "record_step", after=True, at=1)
    telemetry = Telemetry(otel=False)
    before = datetime.now(UTC) - timedelta(seconds=1)
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(cantrip([done(1)]), "go")
        (report,) = telemetry.crashes
    times = [datetime.fromisoformat(event.partition(" ")[0]) for event in report["events"]]
    assert before <= times[0] <= times[-1] <= datetime.fromisoformat(report["at"])


def crashed(reason: Any = None, at: float = 0.0) -> Exited:
    spec: Any = ChildSpec("x", lambda: None)
    return Exited(at, ActorRef(), spec, reason or Crash(KeyError("x")), expected=False)


@pytest.mark.rule("LOG-04", "LOG-05")
async def test_a_crash_makes_one_report_with_what_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    crash_at(monkeypatch, StepRecorder, "record_step", after=True, at=3)
    telemetry = Telemetry(otel=False, crash_dir=tmp_path / "crashes")
    async with Runtime.open(telemetry=telemetry, secrets=[SECRET]) as runtime:
        episode = await runtime.cast(
            cantrip([say("echo", text="x"), say("echo", text="x"), done(1)], name="notes"), "go"
        )
        (report,) = telemetry.crashes
    assert (report["what"], report["actor"], report["reason"]) == ("Exited", episode.entity_id, "crash: Killed")
    assert (report["exception"], report["restart"]) == ("Killed", "transient")
    assert (report["kind"], report["incarnation"], report["call"]) == ("EntityActor", 1, None)
    assert "in crashing" in report["traceback"]
    assert "supervisors/" not in report["traceback"]
    assert report["frames"][-1]["function"] == "crashing"
    assert report["path"].endswith(f"/{episode.entity_id}")
    assert (report["entity"], report["cantrip"]) == (episode.entity_id, "notes")
    assert report["after_turn"] == episode.thread[0].id
    assert [event.partition(" ")[2] for event in report["events"]] == ["started, restarts 0", "ended: crash: Killed"]
    assert set(report["versions"]) == {"cantrip-actors", "python"}
    telemetry.crashes.flush()
    (file,) = (tmp_path / "crashes").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert list(read_crashes(tmp_path / "crashes")) == [report]


@pytest.mark.rule("LOG-05", "LOG-04")
async def test_a_report_reads_a_slow_store_and_writes_its_file_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    threads: list[int] = []

    def note_thread(owner: Any, name: str) -> None:
        work = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *args, **named: (threads.append(threading.get_ident()), work(*args, **named))[1]
        )

    crash_at(monkeypatch, StepRecorder, "record_step", after=True, at=3)
    monkeypatch.setattr(MemoryStore, "blocking", True)
    note_thread(MemoryStore, "newest")
    note_thread(Path, "write_text")
    telemetry = Telemetry(otel=False, crash_dir=tmp_path)
    async with Runtime.open(telemetry=telemetry) as runtime:
        episode = await runtime.cast(cantrip([say("echo", text="x"), say("echo", text="x"), done(1)]), "go")
        telemetry.crashes.flush()
    (report,) = telemetry.crashes
    assert report["after_turn"] == episode.thread[0].id
    assert list(read_crashes(tmp_path)) == [report]
    assert len(threads) >= 2
    assert threading.get_ident() not in threads


@pytest.mark.rule("LOG-05")
async def test_a_report_has_the_type_of_the_call_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    crash_at(monkeypatch, GatesActor, "handle_call", after=False, at=1)
    telemetry = Telemetry(otel=False)
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(cantrip([say("echo", text="x"), done(1)]), "go")
    (report,) = [one for one in telemetry.crashes if one["actor"] == "circle"]
    assert (report["kind"], report["incarnation"], report["call"]) == ("GatesActor", 1, "Run")


@pytest.mark.rule("LOG-05")
async def test_a_report_has_the_restarts_within_the_supervisors_period(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, carried = StepRecorder.record_step, []

    async def crashing(self: Any, *args: Any) -> Any:
        carried.append(1)
        if len(carried) <= 3:
            await anyio.sleep(100.0 if len(carried) == 3 else 0.0)  # longer than the supervisor's period
            raise KeyError(f"x{len(carried)}")  # another one each time: the same one would not be tried again
        return await whole(self, *args)

    monkeypatch.setattr(StepRecorder, "record_step", crashing)
    telemetry = Telemetry(otel=False)
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.cast(cantrip([done(1)]), "go")
    assert [report["recent_restarts"] for report in telemetry.crashes] == [0, 1, 0]  # the newest first


@pytest.mark.rule("LOG-04")
async def test_a_normal_end_makes_no_crash_report() -> None:
    telemetry = Telemetry(otel=False)
    async with Runtime.open(telemetry=telemetry) as runtime:
        await runtime.invoke(cantrip(lambda _: done(1)), "stays")
        await runtime.cast(cantrip([done(1)]), "go")
    assert list(telemetry.crashes) == []


@pytest.mark.rule("LOG-05")
def test_repeated_crashes_are_counted_and_an_exception_group_is_reported_by_its_leaves() -> None:
    crashes = Crashes()
    group = ExceptionGroup("several", [KeyError("a"), ExceptionGroup("inner", [ValueError("b")])])
    for _ in range(BURST + 7):
        crashes.take(crashed(Crash(group)))
    reports = list(crashes)
    assert (len(reports), crashes.dropped) == (200, 7)
    assert reports[0]["leaves"] == ["KeyError: 'a'", "ValueError: b"]
    crashes.take(crashed(at=5.0))
    assert next(iter(crashes))["exception"] == "KeyError"


@pytest.mark.rule("LOG-05")
def test_a_folder_keeps_the_newest_reports_only(tmp_path: Path) -> None:
    for n in range(MOST_FILES + 5):
        (tmp_path / f"0000-{n:05}.json").write_text("{}")
    crashes = Crashes(tmp_path)
    crashes.take(crashed())
    crashes.flush()
    names = sorted(one.name for one in tmp_path.iterdir())
    assert len(names) == MOST_FILES
    assert names[0] == "0000-00006.json"


class Unreadable(Exception):
    """An exception without a text, by a fault of its own."""

    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.rule("LOG-04", "S-52")
async def test_an_exception_whose_text_cannot_be_read_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def crashing(_self: Any, *_: Any) -> Any:
        raise Unreadable

    monkeypatch.setattr(StepRecorder, "record_step", crashing)
    telemetry = Telemetry(otel=False)
    with structlog.testing.capture_logs() as logged:
        async with Runtime.open(telemetry=telemetry) as runtime:
            with pytest.raises(EntityCrashed, match=r"crashed \(Unreadable: <its text cannot be read>\)"):
                await runtime.cast(cantrip([done(1)]), "go")
    exits = [line for line in logged if line["event"] == "child terminated" and "/entities/" in line["path"]]
    reports = [one for one in telemetry.crashes if one["what"] == "Exited" and one["kind"] == "EntityActor"]
    assert len(exits) == len(reports) == telemetry.counters.read_values("cantrip.supervisor.crashes")["entity", "crash"]
    assert {one["exception"] for one in reports} == {"Unreadable"}
    assert {tuple(one["leaves"]) for one in reports} == {("Unreadable: <its text cannot be read>",)}


@pytest.mark.rule("LOG-05")
def test_a_report_is_bounded_whatever_the_exception_says(tmp_path: Path) -> None:
    crashes = Crashes(tmp_path)
    crashes.take(crashed(Crash(ExceptionGroup("many", [ValueError(f"begin {'x' * 1_000_000} end")] * 200))))
    crashes.flush()
    (file,) = tmp_path.iterdir()
    (report,) = crashes
    assert file.stat().st_size < 3_000_000
    assert len(report["leaves"]) == 100
    assert report["leaves"][0].startswith("ValueError: begin xxx")
    assert report["leaves"][0].endswith("xxx end")
    assert max(len(text) for text in [report["traceback"], report["reason"], *report["events"]]) < 21_000


@pytest.mark.rule("LOG-05", "LOG-03")
async def test_a_secret_at_the_place_where_a_text_is_cut_is_redacted_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cantrip_actors.observe.crashes.LONGEST", 200)
    telemetry = Telemetry(otel=False)
    async with Runtime.open(telemetry=telemetry, secrets=[SECRET]):
        for before in range(60, 110):
            telemetry.crashes.take(crashed(Crash(ValueError("x" * before + SECRET + "y" * 500)), at=float(before)))
    assert not [part for part in (SECRET[:14], SECRET[-14:]) if part in json.dumps(list(telemetry.crashes))]


@pytest.mark.rule("LOG-05")
def test_a_report_that_a_killed_process_did_not_finish_hides_no_other(tmp_path: Path) -> None:
    crashes = Crashes(tmp_path)
    crashes.take(crashed())
    crashes.flush()
    (tmp_path / "0000.json").write_text('{"id": "00')
    assert [one["exception"] for one in read_crashes(tmp_path)] == ["KeyError"]


@pytest.mark.rule("LOG-05", "LOG-03")
async def test_secrets_are_not_in_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = StepRecorder.record_step
    raised = []

    async def crashing(self: Any, *args: Any) -> Any:
        result = await whole(self, *args)
        if not raised:
            raised.append(1)
            raise ValueError(SECRET)
        return result

    monkeypatch.setattr(StepRecorder, "record_step", crashing)
    telemetry = Telemetry(otel=False)
    async with Runtime.open(telemetry=telemetry, secrets=[SECRET]) as runtime:
        await runtime.cast(cantrip([done(1)]), "go")
    (report,) = telemetry.crashes
    assert report["exception"] == "ValueError"
    assert SECRET not in json.dumps(report)


@pytest.mark.rule("LOG-06")
@pytest.mark.real_time
async def test_a_signal_dumps_the_actors_while_a_gate_blocks_the_loop() -> None:
    out = io.StringIO()

    def strike() -> None:
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGUSR2)

    @gate
    async def block() -> str:
        """Block the event loop until the dump is there."""
        until = time.monotonic() + 20
        while "-- the event loop is at" not in out.getvalue() and time.monotonic() < until:
            time.sleep(0.01)  # noqa: ASYNC251  # that is the point
        return "x"

    async with Runtime.open() as runtime:
        with dump_at_signal(runtime, out):
            thread = threading.Thread(target=strike)
            thread.start()
            episode = await runtime.cast(cantrip([say("block"), done(1)], block), "go")
            thread.join()
    text = out.getvalue()
    assert f"{episode.entity_id}  EntityActor  up" in text
    system = json.loads(text.partition("-- system\n")[2].partition("\n")[0])
    assert system["loom"] == {"url": "memory:", "durability": "none", "backlog": 0, "size": None}
    assert set(system) == {"at", "crystals", "counters", "loom", "queues", "requests", "streams"}
    assert "circle" in text
    assert "in block" in text
    assert re.search(r"circle  GatesActor  up .*in hand 1 \(\w+, [\d.]+s\)", text)
    assert re.search(r"-- the oldest call in hand\n\S+: \w+, [\d.]+s\n", text)


def signalling() -> Any:
    """Return a gate during which the signal comes."""

    @gate
    async def strike() -> str:
        """Get a signal."""
        os.kill(os.getpid(), signal.SIGUSR2)
        return "struck"

    return strike


@pytest.mark.rule("LOG-06", "LOG-03")
@pytest.mark.real_time
async def test_a_dump_has_the_last_exits_of_actors_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, crashes = GatesActor.handle_call, iter([True])

    async def crash_once(self: Any, message: Any, caller: Any) -> Any:
        if next(crashes, False):
            raise RuntimeError(f"refused: {SECRET}")
        return await whole(self, message, caller)

    monkeypatch.setattr(GatesActor, "handle_call", crash_once)
    out, strike = io.StringIO(), signalling()
    async with Runtime.open(secrets=[SECRET]) as runtime:
        with dump_at_signal(runtime, out):
            await runtime.cast(cantrip([say("echo", text="x"), say("strike"), done(1)], strike), "go")
        whole_tree = runtime.dump()
    assert re.search(r"last exit crash: .*RuntimeError: refused: \[redacted", out.getvalue())
    assert SECRET not in out.getvalue() + whole_tree


class Full(io.StringIO):
    """A standard error whose reader is gone."""

    def write(self, _: str) -> int:
        raise BrokenPipeError


def closed() -> io.StringIO:
    out = io.StringIO()
    out.close()
    return out


@pytest.mark.rule("LOG-06")
@pytest.mark.real_time
@pytest.mark.parametrize("out", [Full(), closed()], ids=["broken", "closed"])
async def test_a_dump_that_cannot_be_written_does_not_touch_the_interrupted_gate(out: io.StringIO) -> None:
    strike = signalling()
    async with Runtime.open() as runtime:
        with dump_at_signal(runtime, out):
            episode = await runtime.cast(cantrip([say("strike"), done(1)], strike), "go")
    assert episode.thread[0].observation == "struck"


@pytest.mark.rule("LOG-06")
@pytest.mark.real_time
async def test_a_dump_after_the_end_of_the_runtime_has_the_tasks_and_the_stack() -> None:
    out = io.StringIO()
    runtime = Runtime.open()
    async with runtime:
        await runtime.cast(cantrip([done(1)]), "go")
    with dump_at_signal(runtime, out):
        os.kill(os.getpid(), signal.SIGUSR2)
        while "-- the event loop is at" not in out.getvalue():
            await anyio.sleep(0.01)
    assert "-- tasks" in out.getvalue()
    assert "test_a_dump_after_the_end" in out.getvalue()


def test_the_library_adds_no_logging_handlers() -> None:
    assert logging.getLogger("cantrip_actors").handlers == []


@pytest.mark.rule("LOG-01")
async def test_a_log_that_cannot_be_written_ends_no_entity(lines: Any) -> None:
    @gate
    async def fail() -> str:
        """Fail."""
        raise ValueError("as it was told")

    closed = io.StringIO()
    closed.close()
    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(closed))
    async with Runtime.open() as runtime:
        outcome = await runtime.cast(cantrip([say("fail"), done("went on")], fail), "go")
    assert outcome.result == "went on"


@pytest.mark.rule("W-60")
@pytest.mark.parametrize("form", ["json", "console"])
def test_lines_are_log_records_without_secrets_and_with_the_exception_as_attributes(
    form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk = Sdk()
    monkeypatch.setattr("opentelemetry._logs.get_logger", sdk.logs.get_logger)
    before, was = structlog.get_config(), structlog.is_configured()
    configure(form, "info", io.StringIO(), Redactor({"key": SECRET}))
    try:
        log = structlog.get_logger("shop")
        log.debug("not this")
        log.warning("ordered", what="milk", key=SECRET, many={"a": 1})
        try:
            raise ValueError(f"the key is {SECRET}")
        except ValueError:
            log.exception("failed")
    finally:
        structlog.configure(**before) if was else structlog.reset_defaults()
    ordered, failed = [one.log_record for one in sdk.log_exporter.get_finished_logs()]
    assert (ordered.body, ordered.severity_text, ordered.attributes["what"]) == ("ordered", "WARNING", "milk")
    assert failed.attributes["exception.type"] == "ValueError"
    assert failed.attributes["exception.message"].startswith("the key is [")
    assert "test_lines.py" in failed.attributes["exception.stacktrace"]
    assert SECRET not in sdk.exported


@pytest.mark.rule("W-60")
def test_a_long_chain_of_exceptions_stays_data_in_a_line(lines: Any) -> None:
    def fail(depth: int) -> None:
        if depth == 0:
            raise ValueError("x" * 5_000)
        try:
            fail(depth - 1)
        except ValueError as error:
            raise ValueError("y" * 5_000) from error

    try:
        fail(20)
    except ValueError:
        structlog.get_logger("shop").exception("failed")
    (line,) = lines()
    first = line["exception"][0]
    assert (first["exc_type"], first["frames"][-1]["name"]) == ("ValueError", "fail")
