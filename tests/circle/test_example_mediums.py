"""The two whole examples of mediums: SQL against a database of the user, and Python that runs elsewhere."""

import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cantrip_actors import Cantrip, Circle, Runtime, ask_first, scripted
from cantrip_actors.mediums import Answer, Exceeded, Finished, ProgramLimits, Raised, Suspended
from cantrip_actors.testing import MediumPrograms, check_medium
from cantrip_actors.wards import max_turns, remove_gate
from examples import remote_python
from examples.remote_python import RemotePython
from examples.sql_medium import SqlMedium, change, make_cantrip, make_shop
from tests.circle.test_check_medium import PROGRAMS

pytestmark = pytest.mark.rule("B-21")

ENDLESS = "WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t)"
SQL = MediumPrograms(
    assign="CREATE TABLE x AS SELECT 41 AS n",
    read="SELECT n FROM x",
    endless=f"UPDATE x SET n = 13; {ENDLESS} SELECT max(i) FROM t",
    fail='SELECT * FROM "bad luck"',
    call="CALL search('notes')",
    call_twice="CALL search('a'); CALL search('b')",
    done="CALL done('the answer')",
    done_and_call="CALL done('the answer'); CALL search('late')",
    read_context="SELECT * FROM C",
    flood="WITH RECURSIVE t(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM t LIMIT 40) "
    "SELECT printf('%.*c', 200, 'x') FROM t",
    hog=f"CREATE TABLE big AS {ENDLESS} SELECT zeroblob(1000000) FROM t",
)


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    make_shop(path)
    return path


def read_shop(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT name, price FROM fruit ORDER BY name").fetchall()


PRICES = [("apple", 2), ("pear", 3)]

# ------------------------------------------------------------------------------------------------------------------ SQL


@pytest.mark.real_time
def test_the_sql_medium_keeps_the_laws(shop: Path) -> None:
    check_medium(SqlMedium(shop), SQL, seconds=0.2)
    assert read_shop(shop) == PRICES


async def observe(shop: Path, programs: Sequence[str], *wards: Any, context: Any = None) -> tuple[Any, list[str]]:
    cantrip = make_cantrip(shop, [*programs, "CALL done('over')"], *wards)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip, "go", context=context)
        return episode.result, [turn.observation for turn in runtime.loom.turns(episode.entity_id)]


async def test_the_capability_text_has_the_tables_of_the_database(shop: Path) -> None:
    text = SqlMedium(shop).capability([change.definition], ProgramLimits())
    assert "CREATE TABLE fruit (name TEXT, price INTEGER)" in text
    assert "change(statement)" in text


@pytest.mark.parametrize(
    ("context", "shown"),
    [
        ([{"name": "pear", "more": 2}, {"name": "fig"}], "name | more\\npear | 2\\nfig | None\\n"),
        ([1, 2], "value\\n1\\n2\\n"),
        ({"a": 1, "b": [2]}, "a | b\\n1 | [2]\\n"),
        ("text", "value\\ntext\\n"),
    ],
)
async def test_the_context_is_the_table_c(shop: Path, context: Any, shown: str) -> None:
    _, (first, *_) = await observe(shop, ["SELECT * FROM C"], context=context)
    assert shown in first


async def test_a_result_is_a_table_and_may_become_one(shop: Path) -> None:
    programs = ["CREATE TABLE dear AS SELECT * FROM db.fruit WHERE price > 2;", "SELECT name FROM dear;"]
    _, (_, second, *_) = await observe(shop, programs)
    assert "name\\npear\\n" in second


async def test_a_statement_that_changes_the_database_is_a_call_of_a_gate(shop: Path) -> None:
    _, shown = await observe(shop, ["UPDATE db.fruit SET price = 5 WHERE name = 'pear'; SELECT price FROM db.fruit;"])
    assert read_shop(shop) == [("apple", 2), ("pear", 5)]
    assert any("1 rows changed" in text for text in shown)
    assert any("price\\n2\\n5\\n" in text for text in shown)  # the program sees its change


async def test_a_ward_makes_the_database_read_only(shop: Path) -> None:
    _, shown = await observe(shop, ["DELETE FROM db.fruit;"], remove_gate("change"))
    assert any("the database is read-only here" in text for text in shown)
    assert read_shop(shop) == PRICES


async def test_a_person_may_decide_about_a_change(shop: Path) -> None:
    crystal = scripted([{"code": "DELETE FROM db.fruit;"}, {"code": "CALL done('over')"}])
    gates = ["done", ask_first(change.with_(database=shop))]
    cantrip = Cantrip(crystal, circle=Circle(gates, [max_turns(9)], medium=SqlMedium(shop)))
    async with Runtime.open() as runtime:
        entity = await runtime.start(cantrip, "go")
        async with runtime.requests(follow=True) as requests:
            request = await anext(requests)
        assert request.args == {"statement": "DELETE FROM db.fruit;"}
        await runtime.decide(request.id, "deny", by="anna")
        assert (await entity.episode()).result == "over"
    assert read_shop(shop) == PRICES


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH 'stolen.db' AS stolen",
        "DETACH db",
        "VACUUM INTO 'stolen.db'",
        "VACUUM main INTO 'stolen.db'",
        "PRAGMA query_only = 0",
        "PRAGMA db.journal_mode = MEMORY",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('evil')",
        "SELECT random()",
        "CREATE TEMP TABLE unbounded (x)",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT s",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('stolen.db', 'x')",
        "CREATE VIRTUAL TABLE leak USING csv(filename='/etc/passwd')",
        "SELECT zeroblob(100000000)",
    ],
)
def test_no_statement_reaches_the_host(
    shop: Path, statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(SqlMedium(shop).open([], ProgramLimits(seconds=2))) as sandbox:
        assert isinstance(sandbox.begin(statement), Raised)
        assert isinstance(sandbox.begin("SELECT * FROM db.fruit"), Finished)
    assert [path.name for path in tmp_path.iterdir()] == ["shop.db"]
    assert read_shop(shop) == PRICES


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO db.fruit VALUES ('fig', 1)",
        "DROP TABLE db.fruit",
        "CREATE TABLE db.mine (x)",
        "ALTER TABLE db.fruit ADD COLUMN x",
        "CREATE TRIGGER db.t AFTER INSERT ON fruit BEGIN DELETE FROM fruit; END",
        "WITH gone AS (SELECT 1) DELETE FROM fruit",
    ],
)
def test_every_change_of_the_database_needs_the_gate(shop: Path, statement: str) -> None:
    with closing(SqlMedium(shop).open([change.definition], ProgramLimits(seconds=2))) as sandbox:
        step = sandbox.begin(statement)
        assert isinstance(step, Suspended)
        assert step.gate == "change"
        assert isinstance(sandbox.answer(step, Answer("no", is_error=True)), Raised)
    assert read_shop(shop) == PRICES


def test_no_lock_is_held_on_the_database_while_a_program_waits(shop: Path) -> None:
    with closing(SqlMedium(shop).open([change.definition], ProgramLimits(seconds=2))) as sandbox:
        step = sandbox.begin("SELECT * FROM db.fruit; CALL change('x')")
        with closing(sqlite3.connect(shop, timeout=0)) as other:
            other.execute("DELETE FROM fruit")
            other.commit()
        assert "name | price\n" in step.output


# ----------------------------------------------------------------------------------------------------- elsewhere


@pytest.fixture(scope="module")
def remote() -> Iterator[RemotePython]:
    with closing(RemotePython()) as medium:
        yield medium


@pytest.mark.real_time
def test_python_that_runs_elsewhere_keeps_the_laws(remote: RemotePython) -> None:
    check_medium(remote, PROGRAMS["python"], seconds=0.5, backends=["trio"])


@pytest.mark.real_time
def test_an_entity_continues_when_the_other_end_is_lost(remote: RemotePython) -> None:
    with closing(remote.open([remote_python.search.definition], ProgramLimits())) as sandbox:
        assert sandbox.begin("x = 41") == Finished(None)
        step = sandbox.begin("search(str(x))")
        assert isinstance(step, Suspended)
        for end in remote._free:
            os.kill(end._process.pid, signal.SIGKILL)
            end._process.wait()
        assert isinstance(sandbox.answer(step, Answer("lost")), Exceeded)
        assert sandbox.begin("x + 1") == Finished(42)
        assert sandbox.answer(step, Answer("found")) == Finished("found")  # the suspended program is here


@pytest.mark.real_time
def test_the_other_end_has_no_network_where_the_system_allows_it() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system gives no network namespaces")
    assert remote_python.list_interfaces(remote_python.make_local_command()) == ["lo"]


def test_the_other_end_gets_no_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    assert set(remote_python.make_environment()) == {"PATH", "PYTHONPATH"}
