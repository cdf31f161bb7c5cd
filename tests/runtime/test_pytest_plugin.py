"""The fixtures for pytest: the recipes of two pages, looms, and a plugin that is inert unless it is used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.loom import postgres

pytestmark = [pytest.mark.rule("Y-42", "L-13"), pytest.mark.real_time]

PAGES = [Path(__file__).parent.parent.parent / "docs" / f"{name}.md" for name in ("testing", "supervisors")]
PLUGIN = "cantrip_actors.testing.pytest_plugin"


def write_recipes(pytester: pytest.Pytester, names: Sequence[str]) -> None:
    """Write these files of each page into a folder for that page."""
    for page in PAGES:
        (pytester.path / f"of_{page.stem}").mkdir()
        blocks = dict(re.findall(r"```python file=(\S+)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
        for name in names:
            (pytester.path / f"of_{page.stem}" / name).write_text(blocks[name], encoding="utf-8")


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    always = ("-p", PLUGIN, "-p", "no:cacheprovider", "--import-mode=importlib", "-Werror")
    return pytester.runpytest_subprocess(*always, *options)


def test_the_recipes_for_anyio_and_trio_run(pytester: pytest.Pytester) -> None:
    write_recipes(pytester, ["test_with_anyio.py", "test_with_trio.py"])
    run(pytester, "-p", "no:asyncio").assert_outcomes(passed=6)


@pytest.mark.skipif(find_spec("pytest_asyncio") is None, reason="pytest-asyncio: make setup installs it")
@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_the_recipe_for_asyncio_runs(pytester: pytest.Pytester, mode: str) -> None:
    write_recipes(pytester, ["conftest.py", "test_with_asyncio.py"])
    if mode == "auto":
        for path in pytester.path.glob("*/test_with_asyncio.py"):
            path.write_text(path.read_text(encoding="utf-8").replace("@pytest.mark.asyncio\n", ""), encoding="utf-8")
    options = ("-o", f"asyncio_mode={mode}", "-o", "asyncio_default_fixture_loop_scope=function")
    run(pytester, *options).assert_outcomes(passed=2)


def test_a_test_without_the_fixtures_imports_nothing_of_the_package(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_nothing_is_imported():
            names = {name for name in sys.modules if name.partition(".")[0] in ("cantrip_actors", "supervisors")}
            plugin = {"cantrip_actors", "cantrip_actors.testing", "cantrip_actors.testing.pytest_plugin"}
            assert names == plugin | {"cantrip_actors.lazy_exports"}
    """)
    run(pytester, "-p", "no:asyncio", "-p", "no:trio").assert_outcomes(passed=1)


LOOMS = """
    import pytest

    @pytest.mark.loom("sqlite")
    def test_a_mark_counts_more_than_the_setting(loom_url, tmp_path):
        assert loom_url == f"sqlite:{tmp_path / 'loom.db'}"

    @pytest.mark.loom("jsonl")
    def test_a_loom_in_a_file_that_no_other_process_writes(loom_url, tmp_path):
        assert loom_url == f"jsonl:{tmp_path / 'loom.jsonl'}"

    def test_the_setting_is_for_all_tests(loom_url):
        assert loom_url == "EXPECTED"

    @pytest.mark.loom("mongo")
    def test_an_unknown_loom_is_refused(loom_url):
        pass
"""


def test_a_mark_and_a_setting_say_which_loom_a_test_has(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LOOMS.replace("EXPECTED", "memory:"))
    result = pytester.runpytest_inprocess("-p", PLUGIN, "-p", "no:cacheprovider", "-p", "no:asyncio")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*loom: expected one of 'memory', 'jsonl', 'sqlite', 'postgres', got 'mongo'*"])


def test_a_runtime_in_a_test_that_no_plugin_runs_is_refused_with_the_mark_that_is_missing(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile("""
        async def test_without_a_mark(runtime):
            pass

        def test_without_async(runtime):
            pass
    """)
    result = run(pytester, "-p", "no:asyncio")
    result.assert_outcomes(errors=2)
    assert str(result.stdout).count("runtime: expected an `async def` test that a plugin runs: mark it with") >= 2


def test_a_loom_in_postgres_has_a_schema_of_its_own(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    server = postgres.fresh().rpartition("schema=")[0].rstrip("?&")
    monkeypatch.setenv("CANTRIP_TEST_POSTGRES", server)
    pytester.makepyfile("""
        import psycopg
        import pytest
        from cantrip_actors import open_loom

        seen = []

        @pytest.mark.parametrize("number", [1, 2])
        def test_it_is_empty(loom_url, number):
            with open_loom(loom_url, read_only=False) as loom:
                assert loom.entities() == []
            seen.append(loom_url)

        def test_it_is_gone_afterwards():
            server, _, schema = seen[0].rpartition("schema=")
            with psycopg.connect(server.rstrip("?&")) as connection:
                query = "select count(*) from pg_namespace where nspname = %s"
                assert connection.execute(query, [schema]).fetchone() == (0,)
            assert len(set(seen)) == 2
    """)
    options = ("-o", "cantrip_loom=postgres", "-p", PLUGIN, "-p", "no:cacheprovider", "-p", "no:asyncio")
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=3)
