"""Snapshots: a sandbox is restored from one, also in the middle of a program, or else rebuilt by replay."""

import signal
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from cantrip_actors import Cantrip, Circle, Invocation, LoomError, Runtime, gate, scripted
from cantrip_actors.circle.medium import medium
from cantrip_actors.loom import open_store, verify_loom
from cantrip_actors.machine.actions import Answer, Compute, Program, SnapshotAfter
from cantrip_actors.machine.events import Called, Computed
from cantrip_actors.records.blob import Blob, Snapshot, make_reference
from cantrip_actors.records.records import Committed, GateStarted
from cantrip_actors.runtime.circles.program_actor import CircleActor
from cantrip_actors.runtime.circles.snapshots import A_PROGRAM, A_SECOND, SMALL, Account, Snapshots
from cantrip_actors.runtime.entity.recorder import StepRecorder
from cantrip_actors.wards import max_depth, max_turns
from tests.circle.shell_jails import confined_by
from tests.exhaustive import EXHAUSTIVE, part
from tests.forked import Forked
from tests.loom.test_blobs import tamper
from tests.loom.test_store import anywhere
from tests.runtime.test_recovery import crash_at

KEY = b"a key for tests, of no secret"

SAYS = {
    "python": {
        "set": "x = 41\nsquares = [n * n for n in range(5)]\ndef more(n):\n    return n + x",
        "add": "x = x + 1\nx",
        "end": "done([x, squares, more(1)])",
        "deep": (
            "print('before')\n"
            "def inner(n):\n"
            "    local = n * 2\n"
            "    said = call_agent('go deeper')\n"
            "    return [local, said, x]\n"
            "done(inner(5))"
        ),
        "child": "done('deep')",
        "strike": "done(strike())",
        "x": "x",
    },
    "javascript": {
        "set": "var x = 41; var squares = [0, 1, 2, 3, 4].map(n => n * n); function more(n) { return n + x; }",
        "add": "x = x + 1; x",
        "end": "done([x, squares, more(1)]);",
        "deep": (
            "console.log('before');"
            "function inner(n) { const local = n * 2; const said = call_agent({intent: 'go deeper'});"
            " return [local, said, x]; }"
            "done(inner(5));"
        ),
        "child": "done('deep');",
        "strike": "done(strike());",
        "x": "x",
    },
    "shell": {
        "set": "x=41; squares=(0 1 4 9 16); more() { echo $(($1 + x)); }; echo kept > file; mkdir d; cd d",
        "add": "x=$((x + 1)); echo $x",
        "end": 'IFS=,; [ "$(cat ../file)" = kept ] && done "[$x, [${squares[*]}], $(more 1)]"',
        "deep": (
            "echo before; inner() { local n=$(($1 * 2)) said=$(call_agent 'go deeper');"
            ' done "[$n, \\"$said\\", $x]"; }; inner 5'
        ),
        "child": "done deep",
        "strike": 'done "$(strike)"',
        "x": "echo $x",
    },
}
RESULT = [43, [0, 1, 4, 9, 16], 44]

pytestmark = pytest.mark.real_time  # programs compute in threads and worker processes


@pytest.fixture(params=sorted(SAYS))
def language(request: pytest.FixtureRequest) -> str:
    if request.param == "shell":
        confined_by("bubblewrap")  # whose shells have images; or a skipped test
    return request.param


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every snapshot is small enough to be kept."""
    monkeypatch.setattr(Account, "can_afford", lambda _: True)


@contextmanager
def begun() -> Iterator[list[str]]:
    """Yield the programs that begin in any sandbox meanwhile."""
    seen: list[str] = []
    whole = CircleActor._begin

    async def begin(self: Any, code: str, variables: Any, *, keep: bool) -> Any:
        seen.append(code)
        return await whole(self, code, variables, keep=keep)

    CircleActor._begin = begin  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        CircleActor._begin = whole  # type: ignore[method-assign]


def spell(language: str, *script: str, child: Any = None, gates: tuple[Any, ...] = ()) -> Cantrip:
    says = SAYS[language]
    lines = [says.get(line, line) for line in script]

    def policy(context: Invocation) -> Any:
        return {"code": lines[sum(m.role == "assistant" for m in context)]}

    wards = [max_turns(20), max_depth(1)]
    circle = Circle(["done", "call_agent", *gates], wards, medium=language)
    return Cantrip(scripted(policy), circle=circle, child_crystal=child or scripted([{"code": says["child"]}] * 9))


async def killed(url: str, cantrip: Cantrip, after: int, **options: Any) -> None:
    """Cast it in a runtime that writes `after` batches and then stops writing, as if it were killed."""
    async with Runtime.open(url, **options) as runtime:
        store = runtime._tree.store
        whole, left = store.append, after

        def append(batch: object, leases: object, **mail: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise LoomError("killed")
            whole(batch, leases, **mail)

        store.append = append
        with pytest.raises(LoomError):
            await runtime.cast(cantrip, "go")


async def resumed(url: str, cantrip: Cantrip, **options: Any) -> tuple[Any, list[str], list[str]]:
    """Resume the killed entity; return its result, the programs that began meanwhile, and the log lines."""
    with begun() as codes, capture_logs() as logs:
        async with Runtime.open(url, cantrips=[cantrip], **options) as runtime:
            (header,) = runtime.interrupted()
            entity = await runtime.resume(header.entity_id)
            episode = await entity.episode()
    return episode.result, codes, [str(log.get("why")) for log in logs if "snapshot" in log["event"]]


class TestRecovery:
    @pytest.mark.rule("CIRCLE-9", "D-011")
    @pytest.mark.usefixtures("always")
    @pytest.mark.parametrize("after", range(2, 6))
    async def test_only_unfinished_programs_are_run_again(self, language: str, after: int, tmp_path: Path) -> None:
        cantrip = spell(language, "set", "add", "add", "end")
        url = f"sqlite:{tmp_path / 'loom.db'}"
        await killed(url, cantrip, after)
        result, codes, why = await resumed(url, cantrip)
        assert result == RESULT
        assert len(codes) == len(set(enumerate(codes))) <= 4
        assert SAYS[language]["set"] not in codes or after <= 3
        assert why == []

    @pytest.mark.rule("CIRCLE-9", "D-011", "LOOM-1")
    @pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
    async def test_a_process_killed_in_the_middle_of_a_gate_call_is_resumed_in_that_call(
        self, kind: str, language: str, tmp_path: Path
    ) -> None:
        """The kill is a real one: the child's gate ends its process while its parent waits for it, three calls deep.

        If the engine cannot snapshot suspended programs, this one is run again with the recorded answers.
        """
        key = None if kind == "sqlite" else KEY  # a JSONL loom has no key that outlives its process
        loom = tmp_path / ("loom.db" if kind == "sqlite" else "loom.jsonl")
        program = (
            "import anyio, os, signal, sys\n"
            "from cantrip_actors import Runtime\n"
            "from tests.runtime.test_snapshots import murder\n"
            "async def main():\n"
            f"    async with Runtime.open(sys.argv[1], snapshot_key={key!r}) as runtime:\n"
            "        strike = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
            "        await runtime.cast(murder(sys.argv[2], strike), 'go')\n"
            "anyio.run(main)\n"
        )
        with Forked(program, loom, language, stderr=subprocess.PIPE, text=True) as ended:
            _, why = await anyio.to_thread.run_sync(ended.communicate)
        assert ended.returncode == -signal.SIGKILL, why

        async with Runtime.open() as runtime:
            undisturbed = await runtime.cast(murder(language, lambda: None), "go")
        assert undisturbed.result == [10, "deep", 41]
        result, codes, why = await resumed(str(loom), murder(language, lambda: None), snapshot_key=key)
        assert result == undisturbed.result
        assert why == []
        assert (SAYS[language]["deep"] in codes) == (language != "python"), "what came before the call is not run again"
        # a snapshot of JavaScript is too large for one program, unless that took long
        assert SAYS[language]["set"] not in codes or language == "javascript"
        with open_store(str(loom), read_only=True) as store:
            assert verify_loom(store).ok
            root = next(iter(store.headers())).entity_id
            ends = [one.observation for one in store.records(root) if hasattr(one, "observation")]
        assert ends[-1].result["output"].splitlines()[:2] in (["before"], ["before", '[10,"deep",41]']), (
            "what was printed before is not lost, nor there twice"
        )

    @pytest.mark.rule("CIRCLE-9", "D-011")
    @pytest.mark.parametrize("at", part(range(1, 9), 2))
    async def test_a_crash_of_the_entity_alone_leads_to_the_same_result(
        self, language: str, at: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        crash_at(monkeypatch, StepRecorder, "record_step", after=True, at=at)
        async with Runtime.open() as runtime:
            episode = await runtime.cast(spell(language, "set", "deep"), "go")
        assert episode.result == [10, "deep", 41]

    @pytest.mark.rule("CIRCLE-9", "D-011", "N-67")
    @pytest.mark.parametrize("key", [None, KEY])
    async def test_a_server_keeps_snapshots_only_with_a_snapshot_key(self, key: bytes | None) -> None:
        with anywhere("postgres") as place:
            cantrip = spell("python", "set", "add", "add", "end")
            await killed(place.url, cantrip, 5, snapshot_key=key)
            with open_store(place.url, read_only=True) as store:
                assert bool(list(store.blobs())) is (key is not None)
                assert verify_loom(store).ok
            result, codes, why = await resumed(place.url, cantrip, snapshot_key=key)
        assert (result, why) == (RESULT, [])
        assert (SAYS["python"]["set"] in codes) is (key is None)


def murder(language: str, blow: Any) -> Cantrip:
    """A spell whose child calls a gate that strikes."""

    @gate(idempotent=True)
    def strike() -> str:
        """Strike."""
        blow()
        return "deep"

    child = scripted([{"code": SAYS[language]["strike"]}] * 9)
    return spell(language, "set", "deep", child=child, gates=(strike,))


class TestForks:
    @pytest.mark.rule("LOOM-4", "CIRCLE-9")
    @pytest.mark.usefixtures("always")
    async def test_a_fork_has_the_variables_of_its_turn_without_running_programs_again(self, language: str) -> None:
        async with Runtime.open() as runtime:
            episode = await runtime.cast(spell(language, "set", "add", "add", "end"), "go")
            assert episode.result == RESULT
            for n, turn in enumerate(episode.thread[:3]):
                ends = scripted([{"code": SAYS[language]["end"]}])
                with begun() as codes:
                    branch = await runtime.fork(turn.id, intent="again", crystal=ends)
                assert branch.result == [41 + n, [0, 1, 4, 9, 16], 42 + n]
                assert codes == [SAYS[language]["end"]]

    @pytest.mark.rule("LOOM-4")
    @pytest.mark.usefixtures("always")
    async def test_a_fork_of_a_fork_has_its_variables_and_does_not_affect_the_original(self, language: str) -> None:
        says = SAYS[language]
        async with Runtime.open() as runtime:
            episode = await runtime.cast(spell(language, "set", "add", "add", "end"), "go")
            before = runtime.loom.turns(episode.entity_id)
            once = await runtime.fork(
                episode.thread[0].id, intent="a", crystal=scripted([{"code": says["add"]}, {"code": says["end"]}])
            )
            twice = await runtime.fork(once.thread[-1].id, intent="b", crystal=scripted([{"code": says["end"]}]))
            assert (once.result[0], twice.result[0]) == (42, 42)
            assert runtime.loom.turns(episode.entity_id) == before


class TestUnusableSnapshots:
    """Each falls back to replay, with a line in the log, and to the same result."""

    @staticmethod
    async def fall(tmp_path: Path, kind: str, harm: Any, **options: Any) -> tuple[list[str], list[str]]:
        path = tmp_path / ("loom.db" if kind == "sqlite" else "loom.jsonl")
        cantrip = spell("python", "set", "add", "add", "end")
        await killed(str(path), cantrip, 5)
        with open_store(path, read_only=True) as store:
            images = [store.blob(digest) for digest in store.blobs()]
        assert images
        for image in images:
            assert image is not None
            harm(path, image)
        result, codes, why = await resumed(str(path), cantrip, **options)
        assert result == RESULT
        assert SAYS["python"]["set"] in codes
        return codes, why

    @pytest.mark.rule("CIRCLE-9", "D-011")
    @pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
    async def test_a_snapshot_that_was_tampered_with_falls_back_to_replay(self, kind: str, tmp_path: Path) -> None:
        _, why = await self.fall(tmp_path, kind, tamper)
        assert why
        assert set(why) <= {"it is not what was written", "it is not in the loom"}

    @pytest.mark.rule("CIRCLE-9")
    async def test_a_forged_snapshot_falls_back_to_replay(self, tmp_path: Path) -> None:
        def forge(path: Path, image: Blob) -> None:
            import sqlite3

            with closing(sqlite3.connect(path)) as other, other:
                seal = image.seal_again(b"a key that I made up").seal
                other.execute("update blobs set seal = ? where digest = ?", (seal, image.digest))

        _, why = await self.fall(tmp_path, "sqlite", forge)
        assert {one[:40] for one in why} == {"it was not sealed by this loom's owner, or the loom"[:40]}

    @pytest.mark.rule("CIRCLE-9")
    async def test_a_missing_snapshot_falls_back_to_replay(self, tmp_path: Path) -> None:
        def remove(path: Path, image: Blob) -> None:
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(line for line in lines if not line.startswith(b'{"blob":')))

        _, why = await self.fall(tmp_path, "jsonl", remove)
        assert set(why) == {"it is not in the loom"}

    @pytest.mark.rule("CIRCLE-9", "D-011")
    async def test_a_snapshot_of_another_engine_version_falls_back_to_replay(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def upgrade(path: Path, image: Blob) -> None:
            monkeypatch.setattr("cantrip_actors.circle.python.medium.PythonMedium.engine", "monty 9.9.9")

        _, why = await self.fall(tmp_path, "sqlite", upgrade)
        assert set(why) == {f"it is of {medium('python').engine.replace('9.9.9', '1.4.0')}, and this is monty 9.9.9"}

    @pytest.mark.rule("CIRCLE-9")
    async def test_a_snapshot_with_a_copied_loom_and_key_file_falls_back_to_replay(self, tmp_path: Path) -> None:
        def copied(path: Path, image: Blob) -> None:
            for file in tmp_path.glob("loom.*"):
                content, mode = file.read_bytes(), file.stat().st_mode
                if file.suffix == ".key":
                    file.rename(tmp_path / "old")  # so that its place on the disk is not given away again
                    file.write_bytes(content)
                    file.chmod(mode)

        _, why = await self.fall(tmp_path, "sqlite", copied)
        assert why

    @pytest.mark.rule("CIRCLE-9")
    async def test_only_the_last_three_snapshots_are_tried(self, language: str) -> None:
        stage = Stage(language)
        images = tuple(SnapshotAfter(n + 1, Snapshot(f"{n:040}")) for n in range(50))
        stage.programs = [Program(SAYS[language]["set"], None), *[Program(SAYS[language]["add"], None)] * 49]
        actor = stage.actor()
        with capture_logs() as logs:
            step = await actor._compute(Compute(SAYS[language]["x"], None, tuple(stage.programs), (), images))
        await actor._close()
        assert isinstance(step, Computed)
        assert int(step.output if language == "shell" else step.value) == 41 + 49
        assert [log["snapshot"] for log in logs] == [f"{n:040}" for n in (49, 48, 47)]

    @pytest.mark.rule("CIRCLE-9")
    async def test_a_snapshot_that_the_engine_refuses_falls_back_to_replay(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: object, image: bytes) -> None:
            raise ValueError("no, thank you")

        monkeypatch.setattr("cantrip_actors.circle.python.medium.PythonSandbox.load", refuse)
        monkeypatch.setattr("cantrip_actors.circle.python.medium.PythonSandbox.resume", refuse)
        _, why = await self.fall(tmp_path, "sqlite", lambda path, image: None)
        assert set(why) == {"no, thank you"}

    @pytest.mark.rule("CIRCLE-9")
    async def test_a_snapshot_that_the_store_cannot_read_falls_back_to_replay(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(self: object, digest: str) -> None:
            raise LoomError("the disk is failing")

        def breaks(path: Path, image: Blob) -> None:
            monkeypatch.setattr("cantrip_actors.loom.sqlite.sqlite.SqliteStore.blob", broken)

        await self.fall(tmp_path, "sqlite", breaks)

    @pytest.mark.rule("CIRCLE-9")
    async def test_a_loom_copied_elsewhere_is_resumed_from_its_snapshot_with_the_same_key(self, tmp_path: Path) -> None:
        cantrip = spell("python", "set", "add", "add", "end")
        await killed(str(tmp_path / "loom.db"), cantrip, 5, snapshot_key=KEY)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        for file in tmp_path.glob("loom.db*"):
            (elsewhere / file.name).write_bytes(file.read_bytes())
        assert not (elsewhere / "loom.db.key").exists()
        result, codes, why = await resumed(str(elsewhere / "loom.db"), cantrip, snapshot_key=KEY)
        assert (result, why) == (RESULT, [])
        assert SAYS["python"]["set"] not in codes

    @pytest.mark.parametrize("key", [b"short", "text" * 9, b""])
    def test_an_invalid_snapshot_key_is_refused(self, key: Any) -> None:
        with pytest.raises(LoomError, match="at least 16 secret bytes"):
            Runtime.open(snapshot_key=key)


class TestSecrets:
    @pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
    async def test_a_loom_redacted_at_rest_has_no_snapshot_and_no_secret_in_any_file(
        self, kind: str, tmp_path: Path
    ) -> None:
        secret = "hush-9f8e7d6c5b4a-hush"
        path = tmp_path / ("loom.db" if kind == "sqlite" else "loom.jsonl")

        @gate
        def tell() -> str:
            """Tell."""
            return secret

        script = ("s = tell()\nprint(s)", "t = [s, tell()]\nlen(t)", "done(len(t[0]))")
        cantrip = spell("python", *script, gates=(tell,))
        with capture_logs() as logs:
            async with Runtime.open(str(path), secrets=[secret], redact="at_rest") as runtime:
                episode = await runtime.cast(cantrip, "go")
        assert episode.result == len(secret)
        with open_store(path, read_only=True) as store:
            assert list(store.blobs()) == []
        assert secret not in str(logs)
        for file in tmp_path.iterdir():
            assert secret.encode() not in file.read_bytes()
        assert not (tmp_path / f"{path.name}.key").exists()

    async def test_snapshots_contain_secrets_and_a_redacted_loom_shows_no_snapshot(self, tmp_path: Path) -> None:
        from cantrip_actors.loom import Loom
        from cantrip_actors.loom.reading.redaction import redacted_loom
        from cantrip_actors.records.records import get_snapshot
        from cantrip_actors.redact.redactor import Redactor

        secret = "hush-9f8e7d6c5b4a-hush"
        path = tmp_path / "loom.db"
        cantrip = spell("python", f"s = '{secret}'", "done(len(s))")
        with capture_logs() as logs:
            async with Runtime.open(str(path), secrets=[secret]) as runtime:
                await runtime.cast(cantrip, "go")
        assert secret not in str(logs)
        with open_store(path, read_only=True) as store:
            images = [store.blob(digest) for digest in store.blobs()]
            assert any(image is not None and secret.encode() in zlib.decompress(image.data) for image in images)
            shown = redacted_loom(Loom(store, None), Redactor([secret]))  # type: ignore[arg-type]
            (records,) = map(shown.records, shown.entities())
            assert any(get_snapshot(record) is not None for record in records)
            assert secret not in repr(records)


class TestStoredSnapshots:
    @pytest.mark.rule("LOOM-1")
    async def test_a_turn_refers_to_its_sandbox_and_a_gate_call_to_the_waiting_program(self) -> None:
        async with Runtime.open() as runtime:
            episode = await runtime.cast(spell("python", "set", "deep"), "go")
            records = runtime.loom.records(episode.entity_id)
            store = runtime._tree.store
        turns = [record.snapshot for record in records if isinstance(record, Committed)]
        calls = [record.snapshot for record in records if isinstance(record, GateStarted)]
        assert [snapshot is not None for snapshot in turns] == [True, False, True], "none where a program goes on"
        assert [snapshot is not None for snapshot in calls] == [True]
        for snapshot in (*turns, *calls):
            image = None if snapshot is None else store.blob(snapshot.digest)
            assert snapshot is None or (image is not None and image.engine == medium("python").engine)

    async def test_the_tools_medium_has_no_snapshot_and_no_key_file(self, tmp_path: Path) -> None:
        crystal = scripted([{"tool_calls": [{"gate": "done", "args": {"answer": 1}}]}])
        async with Runtime.open(f"sqlite:{tmp_path / 'loom.db'}") as runtime:
            await runtime.cast(Cantrip(crystal, circle=Circle(["done"], [max_turns(1)])), "go")
        assert {file.name for file in tmp_path.iterdir()} == {"loom.db"}

    @given(st.lists(st.tuples(st.integers(1, 5 * SMALL), st.floats(0, 0.01)), max_size=60))
    def test_a_snapshot_is_kept_if_it_is_small_or_its_cost_was_earned(self, programs: list[tuple[int, float]]) -> None:
        account = Account()
        earned, paid = 0.0, 0
        for size, seconds in programs:
            account.programs += 1
            account.seconds += seconds
            earned += A_PROGRAM + seconds * A_SECOND
            if account.can_afford() and account.take(size) and size > SMALL:
                paid += size
        assert paid <= earned

    @given(st.integers(SMALL + 1, 10 * SMALL))
    def test_a_large_snapshot_is_made_only_every_so_many_programs(self, size: int) -> None:
        account, made, kept = Account(), 0, 0
        for _ in range(100):
            account.programs += 1
            if account.can_afford():
                made += 1
                kept += account.take(size)
        every = -(-size // A_PROGRAM)
        assert kept == 100 // every
        assert made <= kept + 1


# --------------------------------------------------------------------------- the law: a snapshot is as good as a replay

NAMES = ("a", "b", "c")
numbers = st.integers(-9, 9)
names = st.sampled_from(NAMES)
PYTHON = st.one_of(
    st.builds("{} = {}".format, names, numbers),
    st.builds("{} = [{}, {}]".format, names, numbers, numbers),
    st.builds("{0} = look({1})\nprint({0})".format, names, numbers),
    st.builds("for i in range({}):\n    {} = [look(i)]".format, st.integers(0, 3), names),
    st.builds("print('p')\nfor i in range({}):\n    {} = look(i)\n    print(i)".format, st.integers(1, 3), names),
    st.builds("def f(n={}):\n    return [n, look(n)]\n{} = f()\nprint('f')".format, numbers, names),
    st.builds("k = {0}\ng = lambda n: n * k\n{1} = g({0})".format, numbers, names),
    st.builds("try:\n    {} = look('bad')\nexcept Exception as e:\n    {} = str(e)".format, names, names),
    st.builds("{} = 1\nraise ValueError('{}')".format, names, numbers),
    st.builds("import random\n{} = random.randint(0, 10**6)".format, names),
    st.just("while True: pass"),
)
JAVASCRIPT = st.one_of(
    st.builds("var {} = {};".format, names, numbers),
    st.builds("var {} = [{}, {}];".format, names, numbers, numbers),
    st.builds("var {0} = look({1}); console.log({0});".format, names, numbers),
    st.builds("for (let i = 0; i < {}; i++) var {} = [look(i)];".format, st.integers(0, 3), names),
    st.builds("function f(n) {{ return [n, look(n)]; }} var {} = f({});".format, names, numbers),
    st.builds("var k = {0}; var g = n => n * k; var {1} = g({0});".format, numbers, names),
    st.builds("try {{ var {} = look('bad'); }} catch (e) {{ var {} = e.message; }}".format, names, names),
    st.builds("var {} = 1; throw new Error('{}');".format, names, numbers),
    st.builds("var {} = Math.random();".format, names),
)
SHELL = st.one_of(
    st.builds("{}={}".format, names, numbers),
    st.builds("{0}=$(look {1}); echo ${0}".format, names, numbers),
    st.builds("for i in 1 2; do look $i; {}=$i; done".format, names),
    st.builds("f() {{ look {}; echo {}; }}; {}=$(f)".format, numbers, numbers, names),
    st.builds("{}=$(look bad) || {}=failed".format, names, names),
    st.builds("{}=1; exit {}".format, names, numbers),
    st.builds("echo {} > ~/{}".format, numbers, names),
    st.builds("mkdir -p ~/d/{0}; cd ~/d/{0}".format, names),
    st.builds("rm -rf ~/{0} ~/d; ln -s {0} ~/link 2>/dev/null; cd".format, names),
    st.builds("set -{}".format, names.map({"a": "u", "b": "f", "c": "C"}.get)),
    st.builds("rm -f ~/*; {}=2; while :; do :; done".format, names),
)
OFTEN = {
    "python": ["b = 1", "print('p')\nfor i in range(3):\n    a = look(i)\n    print(i)"],
    "javascript": ["var b = 1;", "console.log('p'); for (let i = 0; i < 3; i++) { var a = look(i); console.log(i); }"],
    "shell": ["b=1", "echo p; for i in 0 1 2; do a=$(look $i); echo $i; done"],
}
"""Programs that print before, between and after several calls."""
PROBES = {
    "python": "\n".join(f"try:\n    {n} = {n}\nexcept NameError:\n    {n} = None" for n in NAMES) + "\n[a, b, c]",
    "javascript": "[typeof a == 'undefined' ? null : a, typeof b == 'undefined' ? null : b,"
    " typeof c == 'undefined' ? null : c]",
    "shell": 'echo "${a-}|${b-}|${c-}|$PWD|$-"; declare -f f; find ~ -printf "%P %y %m %l\\n" | sort;'
    "cat ~/[abc] 2>/dev/null",
}


@gate
def look(at: Any) -> Any:
    """Look at something."""
    return at


class Stage:
    """A circle actor outside of a cell, with the programs and snapshots that the loop would keep."""

    def __init__(self, language: str) -> None:
        from cantrip_actors.wards import max_compute

        self.kept: dict[str, Blob] = {}
        self.programs: list[Program] = []
        self.images: list[SnapshotAfter] = []
        self.midways: list[tuple[int, SnapshotAfter, tuple[Answer, ...], str]] = []
        self._circle = Circle(["done", look], [max_turns(1), max_compute(0.2)], medium=language)
        self._unhurried = Circle(["done", look], [max_turns(1)], medium=language)
        self.snapshots = Snapshots(lambda: KEY, self.read)

    async def read(self, digest: str) -> Blob | None:
        return self.kept.get(digest)

    def actor(self) -> CircleActor:
        return CircleActor(self._circle, self.snapshots)

    def keep(self, snapshot: Any, after: int) -> SnapshotAfter:
        assert snapshot.blob is not None
        self.kept[snapshot.digest] = snapshot.blob
        return SnapshotAfter(after, make_reference(snapshot))

    async def run(self, actor: CircleActor, code: str) -> list[Any]:
        """Return the results of a program, step by step."""
        step = await actor._compute(Compute(code, None, tuple(self.programs), (), tuple(self.images)))
        answers: tuple[Answer, ...] = ()
        printed, told = "", []
        while isinstance(step, Called):
            printed += step.output
            answer = Answer("no", is_error=True) if step.args == {"at": "bad"} else Answer((step.args or {})["at"])
            if step.snapshot is not None:
                self.midways.append(
                    (len(self.programs), self.keep(step.snapshot, len(answers)), (*answers, answer), code)
                )
            told.append((step.gate, step.args, printed))
            answers = (*answers, answer)
            step = actor._make_event(await actor._answer(answer))
        if step.snapshot is not None:
            self.images.append(self.keep(step.snapshot, len(self.programs) + 1))
        self.programs.append(Program(code, None, answers, undone=step.limit is not None))
        return [*told, printed + step.output, step.value, step.error, step.limit]

    async def probe(self, language: str, images: tuple[SnapshotAfter, ...], programs: int) -> Any:
        """Return the variables of a sandbox that is rebuilt after so many programs."""
        actor = CircleActor(self._unhurried, self.snapshots)
        step = await actor._compute(Compute(PROBES[language], None, tuple(self.programs[:programs]), (), images))
        await actor._close()
        assert isinstance(step, Computed)
        return step.output if language == "shell" else step.value


@pytest.mark.rule("CIRCLE-9", "LOOM-4", "D-011")
@pytest.mark.parametrize("language", sorted(PROBES))
@pytest.mark.usefixtures("always")
def test_a_sandbox_from_its_snapshot_equals_one_from_its_programs(language: str) -> None:
    if language == "shell":
        confined_by("bubblewrap")
    programs = {"python": PYTHON, "javascript": JAVASCRIPT, "shell": SHELL}[language]

    @settings(max_examples=12 if EXHAUSTIVE else 4)
    @example(OFTEN[language])
    @given(st.lists(programs, min_size=1, max_size=5))
    def holds(codes: list[str]) -> None:
        anyio.run(check, codes)

    async def check(codes: list[str]) -> None:
        stage = Stage(language)
        actor = stage.actor()
        told = [await stage.run(actor, code) for code in codes]
        assert actor._sandbox is not None
        actor._sandbox.limits = actor._sandbox.limits.again()
        live = await actor._compute(Compute(PROBES[language], None, tuple(stage.programs)))
        await actor._close()
        assert isinstance(live, Computed)
        images = tuple(stage.images)
        # at the end, and at every turn that a fork could begin at
        for n in range(1, len(codes) + 1):
            upto = tuple(left for left in images if left.after <= n)
            by_snapshot = await stage.probe(language, upto, n)
            assert by_snapshot == await stage.probe(language, (), n)
        assert by_snapshot == (live.output if language == "shell" else live.value)
        for before, midway, answers, code in stage.midways:
            assert told[before] == await again(stage, before, midway, answers, code)

    async def again(
        stage: Stage, before: int, midway: SnapshotAfter, answers: tuple[Answer, ...], code: str
    ) -> list[Any]:
        """Return the results of a program that is resumed in its middle with the next answer."""
        other = Stage(language)
        other.kept, other.programs = stage.kept, stage.programs[:before]
        whole = stage.programs[before].answers
        actor = other.actor()
        images = tuple(left for left in stage.images if left.after <= before)
        step = await actor._compute(Compute(code, None, tuple(other.programs), answers, images, midway))
        printed, told = "", []
        for n, answer in enumerate(whole[len(answers) :]):
            assert isinstance(step, Called)
            printed += step.output
            told.append((step.gate, step.args, printed))
            if step.snapshot is not None:  # the program was restored once, and may be restored again
                kept = await other.snapshots.load(other.keep(step.snapshot, n).snapshot, actor._engine, "suspended")
                assert kept is not None
                assert kept.output == printed
            step = actor._make_event(await actor._answer(answer))
        await actor._close()
        assert isinstance(step, Computed)
        first = await untouched(stage, before, code)
        return [*first[: len(answers)], *told, printed + step.output, step.value, step.error, step.limit]

    async def untouched(stage: Stage, before: int, code: str) -> list[Any]:
        """Return the results of the same program, run again from its beginning."""
        other = Stage(language)
        other.programs = stage.programs[:before]
        actor = other.actor()
        told = await other.run(actor, code)
        await actor._close()
        return told

    holds()


BUSY = {
    "python": "i = 0\nwhile i < {}:\n    i += 1\n",
    "javascript": "for (let i = 0; i < {}; i++) {{}};\n",
    "shell": "for ((i = 0; i < {}; i++)); do :; done\n",
}
"""Computes, the longer the greater the number."""
LOOKS = {"python": "a = look(7)\n", "javascript": "var a = look(7);\n", "shell": "a=$(look 7)\n"}


@pytest.mark.rule("CIRCLE-9", "LOOM-4")
@pytest.mark.parametrize("language", sorted(BUSY))
async def test_a_program_that_ended_in_time_is_run_again_without_its_limit_on_a_slower_machine(language: str) -> None:
    if language == "shell":
        confined_by("bubblewrap")
    stage = Stage(language)
    actor = stage.actor()
    much = 1_000
    while (await stage.run(actor, BUSY[language].format(much)))[-1] is None:
        much *= 2
    await actor._close()
    too_much = BUSY[language].format(much)  # for this machine, and not for the one that it ran on
    stage.programs = [Program(too_much + LOOKS[language], None, (Answer(7),))]
    step = await actor._compute(Compute(PROBES[language], None, tuple(stage.programs)))
    assert isinstance(step, Computed)
    assert "7|||" in step.output if language == "shell" else step.value == [7, None, None]
    in_the_middle = Compute(too_much + LOOKS[language], None, (), (Answer(7),))
    step = await actor._compute(in_the_middle)
    assert isinstance(step, Computed)
    assert (step.error, step.limit) == (None, None)
    await actor._close()


@pytest.mark.rule("CIRCLE-9", "D-011")
async def test_a_program_that_does_not_end_in_a_replay_is_logged_without_its_output_and_arguments() -> None:
    stage = Stage("python")
    stage.programs = [Program("print('canary-1')\nlook('canary-2')", None, ())]
    with structlog.testing.capture_logs() as logs:
        assert await stage.probe("python", (), 1) == [None, None, None]
    assert [one["where"] for one in logs] == ["look"]
    assert "canary" not in str(logs)
