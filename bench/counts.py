"""`python -m bench counts`: the bytecodes and calls of a turn, a cast and a send, which do not depend on the load.

CPU time scatters on a busy machine; these counts hardly do. They tell where a change of cost comes from, and not how
large it is: a bytecode that runs once a turn costs more than the second run of the same one, because the caches and
the branch predictor hold less than a turn. So *distinct* counts the bytecodes that run at least every second time. On
the machine of the limits (`turns`) a bytecode took about 6 ns, and each distinct one 10 ns more.

- *turn*: turns 20 to 60 of one entity.
- *many*: a turn of 20 entities of 20 turns at once.
- *cast*: a one-shot entity of one turn.
- *fresh*: the same, each with a cantrip and a crystal of its own, as in `turns`.
- *send*: a further intent for an idle long-lived entity.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import anyio
import orjson

from bench.turns_worker import answer, cantrip_of, echo
from cantrip_actors import Cantrip, Circle, Folding, Invocation, Runtime, scripted
from cantrip_actors.wards import max_turns

__all__ = ["main"]

ROOT = Path(__file__).parent.parent
STORES = {"memory": "memory:", "jsonl": "jsonl:{folder}/loom.jsonl", "sqlite": "sqlite:{folder}/loom.db"}
FIRST, LAST = 20, 60
"""The turns that are counted."""
WARM = 5
"""The casts that are not counted."""


class _Count:
    """Counts what runs between `begin` and `end` in this thread."""

    def __init__(self) -> None:
        self.bytecodes: Counter[tuple[CodeType, int]] = Counter()
        self.calls: Counter[CodeType] = Counter()
        self.c_calls: Counter[CodeType] = Counter()

    def begin(self) -> None:
        """Begin, in the frames that run already, too."""
        gc.disable()
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # there is no public way to the frames below
        while frame is not None:
            frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines = self._count_bytecode, True, False
            frame = frame.f_back
        sys.settrace(self._count_bytecode)
        sys.setprofile(self._count_c_call)

    def end(self) -> None:
        """Stop counting."""
        sys.settrace(None)
        sys.setprofile(None)
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # likewise
        while frame is not None:
            frame.f_trace = None
            frame = frame.f_back

    def _count_bytecode(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "call":
            self.calls[frame.f_code] += 1
        elif event == "opcode":
            self.bytecodes[frame.f_code, frame.f_lasti] += 1
        return self._count_bytecode

    def _count_c_call(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "c_call":
            self.c_calls[frame.f_code] += 1

    def summarise(self, times: int) -> dict[str, list[float]]:
        """Return for each function its bytecodes, distinct bytecodes, calls and calls of C functions, each time."""
        functions: dict[str, list[float]] = {}
        for (code, _), n in self.bytecodes.items():
            row = functions.setdefault(_read_name(code), [0.0, 0, 0.0, 0.0])
            row[0] += n / times
            row[1] += n >= times / 2
        for at, counted in ((2, self.calls), (3, self.c_calls)):
            for code, n in counted.items():
                functions.setdefault(_read_name(code), [0.0, 0, 0.0, 0.0])[at] += n / times
        return functions


def _read_name(code: CodeType) -> str:
    file = code.co_filename.rpartition("site-packages/")[2].removeprefix(f"{Path.cwd()}/").removeprefix(sys.base_prefix)
    return f"{file}:{code.co_qualname}"


async def _count_turn(runtime: Runtime, count: _Count) -> int:
    is_counted = False

    def policy(context: Invocation) -> Mapping[str, Any]:
        turn = len(context) // 2
        if is_counted and turn == FIRST:
            count.begin()
        elif is_counted and turn == LAST:
            count.end()
        return answer(turn, LAST + 10)

    circle = Circle(["done", echo], [max_turns(LAST + 11)])
    cantrip = Cantrip(scripted(policy, record=False), circle=circle)
    for _ in range(2):
        await runtime.cast(cantrip, "go")
    is_counted = True
    await runtime.cast(cantrip, "go")
    return LAST - FIRST


async def _count_many(runtime: Runtime, count: _Count) -> int:
    for is_last in (False, False, True):
        cantrip = cantrip_of(20)
        if is_last:
            count.begin()
        async with anyio.create_task_group() as casts:
            for _ in range(20):
                casts.start_soon(runtime.cast, cantrip, "go")
    count.end()
    return 400


async def _cast(runtime: Runtime, count: _Count) -> int:
    return await _cast_each([cantrip_of(1)] * 15, runtime, count)


async def _count_fresh(runtime: Runtime, count: _Count) -> int:
    return await _cast_each([cantrip_of(1) for _ in range(15)], runtime, count)


async def _cast_each(cantrips: Sequence[Cantrip], runtime: Runtime, count: _Count) -> int:
    for at, cantrip in enumerate(cantrips):
        if at == WARM:
            count.begin()
        await runtime.cast(cantrip, "go")
    count.end()
    return len(cantrips) - WARM


async def _send(runtime: Runtime, count: _Count) -> int:
    crystal = scripted(lambda context: f"noted: {context[-1].content}", record=False, name="keeper")
    cantrip = Cantrip(crystal, circle=Circle(["done"], [max_turns(4)]), folding=Folding(trigger_after_turns=20))
    entity = await runtime.invoke(cantrip, "note 0")
    await entity.episode()
    for number in range(100):
        await entity.send(f"warm {number}")
    count.begin()
    for number in range(40):
        await entity.send(f"note {number}")
    count.end()
    return 40


_SHAPES = {"turn": _count_turn, "many": _count_many, "cast": _cast, "fresh": _count_fresh, "send": _send}


async def _count(what: str, store: str) -> dict[str, list[float]]:
    count = _Count()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with Runtime.open(STORES[store].format(folder=folder)) as runtime:
            times = await _SHAPES[what](runtime, count)
    return count.summarise(times)


def _run_in_process(what: str, store: str, tree: Path) -> dict[str, list[float]]:
    # the other commit may lack this file, so this one runs and imports the modules of that tree
    command = [sys.executable, str(Path(__file__).resolve()), "count", what, store]
    environment = {"PYTHONPATH": str(tree.resolve()), "PYTHONHASHSEED": "0"}
    ran = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, check=True)
    functions: dict[str, list[float]] = orjson.loads(ran.stdout)
    return functions


def main(argv: Sequence[str]) -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(prog="python -m bench counts", description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", choices=[*_SHAPES, []], help="default: all")
    parser.add_argument("--store", choices=[*STORES], default="memory", help="default: %(default)s")
    parser.add_argument("--beside", type=Path, metavar="TREE", help="a checkout of another commit to compare with")
    parser.add_argument("--top", type=int, default=0, help="how many functions to print")
    options = parser.parse_args(argv)
    trees = [ROOT] if options.beside is None else [ROOT, options.beside]
    print(f"{'':<8}{'':<8}{'bytecodes':>10}{'distinct':>10}{'calls':>8}{'C calls':>9}")
    for what in options.what or _SHAPES:
        for tree in trees:
            functions = _run_in_process(what, options.store, tree)
            total = [sum(row[at] for row in functions.values()) for at in range(4)]
            where = "here" if tree is ROOT else "beside"
            print(f"{what:<8}{where:<8}{total[0]:>10.0f}{total[1]:>10.0f}{total[2]:>8.0f}{total[3]:>9.0f}")
            for name, row in sorted(functions.items(), key=lambda item: -item[1][0])[: options.top]:
                print(f"{'':<16}{row[0]:>10.1f}{row[1]:>10.0f}{row[2]:>8.1f}{row[3]:>9.1f}  {name}")
    return 0


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(anyio.run(partial(_count, *sys.argv[2:4]))))
