"""The loom writer, in its own task and in the task of an entity that writes alone."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import Cantrip, CantripError, Circle, Runtime, gate, scripted
from cantrip_actors.records.records import Committed
from cantrip_actors.wards import max_turns


@gate
async def echo(text: str) -> str:
    """Give back the text."""
    return text


def spell() -> Cantrip:
    said = [{"tool_calls": [{"gate": "echo", "args": {"text": "a"}}]}] * 3
    crystal = scripted(
        lambda context: [*said, {"tool_calls": [{"gate": "done", "args": {"answer": "ok"}}]}][len(context) // 2],
        record=False,
    )
    return Cantrip(crystal, circle=Circle(["done", echo], [max_turns(9)]))


def count_appends(runtime: Runtime, crash_at: int = 0) -> list[int]:
    """Note how many records each append of a runtime has; the append with that number raises an unexpected error."""
    store: Any = runtime._tree.store
    append, sizes = store.append, list[int]()

    def noted(records: Any, *more: Any, **named: Any) -> None:
        sizes.append(len(records))
        if len(sizes) == crash_at:
            raise ZeroDivisionError("a bug of the store")
        append(records, *more, **named)

    store.append = noted
    return sizes


@pytest.mark.rule("C-71")
async def test_entities_that_write_at_once_share_a_commit(tmp_path: Path) -> None:
    async with Runtime.open(f"sqlite:{tmp_path / 'loom.db'}") as runtime:
        sizes = count_appends(runtime)
        alone = await runtime.cast(spell(), "go")
        single = len(sizes)
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(runtime.cast, spell(), "go")
        assert alone.result == "ok"
        assert len(sizes) - single < 20 * single / 5, "they made groups"


@pytest.mark.rule("D-011", "C-71")
@pytest.mark.parametrize("crash_at", [1, 2, 3, 4])
async def test_the_loom_writer_restarts_when_it_crashes_in_the_task_of_an_entity(crash_at: int) -> None:
    async with Runtime.open() as runtime:
        sizes = count_appends(runtime, crash_at)
        with pytest.raises(Exception, match=r".+"):  # the cast ends with some error
            await runtime.cast(spell(), "go")
        assert len(sizes) >= crash_at
        await anyio.sleep(5)
        assert (await runtime.cast(spell(), "go")).result == "ok"


@pytest.mark.rule("LOOM-1", "D-011")
async def test_a_result_that_could_not_be_recorded_is_returned_to_no_caller() -> None:
    answer = scripted([{"tool_calls": [{"gate": "done", "args": {"answer": "x"}}]}] * 9)
    async with Runtime.open() as runtime:
        store: Any = runtime._tree.store
        append = store.append

        def refuse_ends(records: Any, *more: Any, **named: Any) -> None:
            if any(isinstance(record, Committed) and record.terminated for record in records):
                raise ZeroDivisionError("a bug of the store")
            append(records, *more, **named)

        store.append = refuse_ends
        with pytest.raises(CantripError):
            await runtime.cast(Cantrip(answer, circle=Circle(["done"], [max_turns(9)])), "go")
