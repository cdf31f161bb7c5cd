"""Code circles in the runtime: programs, their gates and children, and resuming in the middle of a program."""

import contextlib
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_actors import (
    Cantrip,
    Circle,
    InvalidCantrip,
    Invocation,
    LoomError,
    Runtime,
    gate,
    scripted,
)
from cantrip_actors.machine.actions import Compute
from cantrip_actors.runtime.circles import program_actor as circles
from cantrip_actors.runtime.circles.program_actor import CircleActor
from cantrip_actors.runtime.entity.recorder import StepRecorder
from cantrip_actors.wards import Ward, max_compute, max_depth, max_gate_calls, max_memory, max_output, max_turns
from supervisors.reasons import SHUTDOWN
from tests.runtime.test_recovery import crash_at, die_after

# the programs of the tests, in each language
PYTHON = {
    "set": "x = 41",
    "add": "x = x + effect('one')\nprint('x is', x)\nx",
    "done x": "done(x)",
    "raise": "y = 1\nraise ValueError('boom')",
    "done y": "done(y)",
    "delegate": "answer = call_agent(INTENT)\ndone(answer)",
    "sum": "done(sum(context))",
    "rlm": (
        "parts = [context[i:i + 10] for i in range(0, len(context), 10)]\n"
        "sums = call_agent_batch([{'intent': 'sum', 'context': part} for part in parts])\n"
        "done(sum(sums))"
    ),
    "twice": "a = effect('first')\nb = effect('second')\ndone([a, b])",
    "catch": "try:\n    call_agent('x', gates=['fetch'])\nexcept Exception as e:\n    done('caught: ' + str(e))",
}
JAVASCRIPT = {
    "set": "var x = 41;",
    "add": "x = x + effect('one'); console.log('x is', x); x",
    "done x": "done(x);",
    "raise": "var y = 1; throw new Error('boom');",
    "done y": "done(y);",
    "delegate": "var answer = call_agent({intent: INTENT}); done(answer);",
    "sum": "done(context.reduce((a, b) => a + b, 0));",
    "rlm": (
        "var parts = []; for (let i = 0; i < context.length; i += 10) parts.push(context.slice(i, i + 10));"
        "var sums = call_agent_batch(parts.map(part => ({intent: 'sum', context: part})));"
        "done(sums.reduce((a, b) => a + b, 0));"
    ),
    "twice": "var a = effect('first'); var b = effect('second'); done([a, b]);",
    "catch": "try { call_agent({intent: 'x', gates: ['fetch']}); } catch (error) { done('caught: ' + error.message); }",
}
LANGUAGES = {"python": PYTHON, "javascript": JAVASCRIPT}

pytestmark = pytest.mark.real_time  # programs compute in threads and worker processes


@pytest.fixture(params=sorted(LANGUAGES))
def language(request: pytest.FixtureRequest) -> str:
    return request.param


class World:
    """The effects of gates, counted outside of the entities."""

    def __init__(self, language: str) -> None:
        self.says = LANGUAGES[language]
        self.language = language
        self.effects: list[str] = []
        self.paid = 0

    def spell(self, *script: str, children: tuple[str, ...] = (), depth: int = 1, crystal: Any = None) -> Cantrip:
        @gate
        async def effect(what: str) -> int:
            """Change the world."""
            self.effects.append(what)
            return 1

        def policy(lines: tuple[str, ...]) -> Any:
            def next_line(context: Invocation) -> Any:
                self.paid += 1
                said = sum(m.role == "assistant" for m in context)
                return {"code": lines[said] if said < len(lines) else "done('gave up')"}

            return next_line

        gates = ["done", effect, "call_agent", "call_agent_batch"]
        return Cantrip(
            crystal or scripted(policy(tuple(script))),
            circle=Circle(gates, [max_turns(9), max_depth(depth)], medium=self.language),
            child_crystal=scripted(policy(children)) if children else None,
        )


@pytest.mark.rule("CIRCLE-9", "CIRCLE-4", "CIRCLE-3")
async def test_variables_persist_from_turn_to_turn(language: str) -> None:
    world = World(language)
    says = world.says
    async with Runtime.open() as runtime:
        episode = await runtime.cast(world.spell(says["set"], says["add"], says["done x"]), "go")
    assert episode.result == 42
    assert episode.thread[1].gate_calls[-1].result == {"output": "x is 42\n", "value": 42}


@pytest.mark.rule("CIRCLE-5", "CIRCLE-9")
async def test_an_exception_is_an_observation_and_earlier_variables_are_kept(language: str) -> None:
    world = World(language)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(world.spell(world.says["raise"], world.says["done y"]), "go")
    assert episode.thread[0].gate_calls[0].is_error
    assert "boom" in episode.thread[0].observation
    assert episode.result == 1


@pytest.mark.rule("COMP-2", "COMP-3", "COMP-4", "LOOM-8")
async def test_data_is_split_among_children_and_never_enters_a_prompt(language: str) -> None:
    world = World(language)
    data = list(range(100))
    async with Runtime.open() as runtime:
        crystal = scripted([{"code": world.says["rlm"]}])
        spell = world.spell(children=(world.says["sum"],), crystal=crystal)
        episode = await runtime.cast(spell, "add it up", context=data)
        assert len(runtime.loom.subtree(episode.entity_id)) == 11
    assert episode.result == sum(data)
    assert not any("99" in (m.content or "") for m in crystal.invocations[0] if m.role != "system")


@pytest.mark.rule("COMP-1")
async def test_granting_a_forbidden_gate_to_a_child_is_an_error_that_the_program_catches(language: str) -> None:
    world = World(language)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(world.spell(world.says["catch"]), "go")
    assert 'cannot grant gate "fetch"' in episode.result


@pytest.mark.rule("COMP-6")
async def test_programs_nest_to_the_depth_of_the_ward_on_two_cores(language: str) -> None:
    world = World(language)

    def policy(context: Invocation) -> Any:
        depth = int(context[-1].content)
        call = world.says["delegate"].replace("INTENT", repr(str(depth - 1)))
        return {"code": call if depth else "done(0)"}

    async with Runtime.open() as runtime:
        episode = await runtime.cast(world.spell(depth=20, crystal=scripted(policy)), "20")
        assert len(runtime.loom.entities()) == 21
    assert episode.result == 0


@pytest.mark.rule("LOOM-4")
async def test_a_fork_has_the_variables_of_its_turn(language: str) -> None:
    world = World(language)
    says = world.says
    async with Runtime.open() as runtime:
        episode = await runtime.cast(world.spell(says["set"], says["add"], says["done x"]), "go")
        branches = [
            await runtime.fork(turn.id, intent="again", crystal=scripted([{"code": says["done x"]}]))
            for turn in episode.thread[:2]
        ]
    assert [branch.result for branch in branches] == [41, 42]
    assert world.effects == ["one"], "a fork runs the programs again, and nothing outside sees it"


@pytest.mark.rule("CIRCLE-9", "D-011")
@pytest.mark.parametrize("at", range(1, 6))
async def test_a_program_is_resumed_in_the_middle_after_a_crash(
    language: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(language)
    crash_at(monkeypatch, StepRecorder, "record_step", after=True, at=at)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(world.spell(world.says["twice"]), "go")
    # if the crash fell between a gate's start and its end, the program observes an unknown outcome
    unknown = any("outcome unknown" in turn.observation for turn in episode.thread)
    assert episode.result == ("gave up" if unknown else [1, 1])
    assert len(world.effects) == len(set(world.effects))


@pytest.mark.rule("CIRCLE-9", "D-011", "LOOM-1")
@pytest.mark.parametrize("after", range(2, 8))
async def test_a_program_is_resumed_in_the_middle_by_the_next_process(
    language: str, after: int, tmp_path: Path
) -> None:
    world = World(language)
    says = world.says
    spell = world.spell(says["set"], says["add"], says["done x"])
    url = f"sqlite:{tmp_path / 'loom.db'}"
    async with Runtime.open(url) as runtime:
        die_after(runtime, after)
        with contextlib.suppress(LoomError):
            await runtime.cast(spell, "go")
    async with Runtime.open(url, cantrips=[spell]) as runtime:
        for header in runtime.interrupted():
            entity = await runtime.resume(header.entity_id)
            await entity.episode()
        (entity_id,) = runtime.loom.entities()
        turns = runtime.loom.turns(entity_id)
    assert world.effects in (["one"], [])
    if world.effects and not any("unknown" in turn.observation for turn in turns):
        assert turns[-1].gate_calls[0].result == 42


async def test_a_missing_language_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from cantrip_actors.circle import medium

    monkeypatch.setattr(medium, "_NEEDS", {})
    spell = Cantrip(scripted([{"code": "1"}]), circle=Circle(["done"], [max_turns(1)], medium="python"))
    async with Runtime.open() as runtime:
        with pytest.raises(InvalidCantrip, match='medium "python" is not available'):
            await runtime.cast(spell, "go")
        assert runtime.loom.entities() == []


TOO_MUCH: dict[str, dict[str, str]] = {
    "python": {
        "spin": "while True: pass",
        "fill": "y = [0] * (3 * 2**20)",
        "calls": "for _ in range(3): look()",
        "print": "print('x' * 200)",
        "before": "x = 1",
        "after": "done(x)",
    },
    "javascript": {
        "spin": "while (true) {}",
        "fill": "var y = new Array(3 * 2**20).fill(0);",
        "calls": "for (let i = 0; i < 3; i++) look();",
        "print": "console.log('x'.repeat(200));",
        "before": "var x = 1;",
        "after": "done(x);",
    },
    "shell": {
        "spin": "while :; do :; done",
        "fill": "y=$(head -c 12000000 /dev/zero | tr '\\0' x); exit 9",
        "calls": "look; look; look",
        "print": "printf 'x%.0s' {1..200}",
        "before": "x=1",
        "after": 'done "$x"',
    },
}
WARDS = {"spin": max_compute(0.3), "fill": max_memory(2**22), "calls": max_gate_calls(2), "print": max_output(50)}


@pytest.mark.rule("CIRCLE-6", "CIRCLE-5")
@pytest.mark.parametrize("what", sorted(WARDS))
@pytest.mark.parametrize("name", sorted(TOO_MUCH))
async def test_a_ward_on_programs_ends_the_program_in_each_language_and_not_the_entity(name: str, what: str) -> None:
    @gate
    def look() -> str:
        """Look."""
        return "seen"

    says, ward = TOO_MUCH[name], WARDS[what]
    crystal = scripted([{"code": says[line]} for line in ("before", what, "after")])
    circle = Circle(["done", look], [max_turns(5), ward], medium=name)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(crystal, circle=circle), "go")
    assert str(episode.result) == "1"
    seen = episode.thread[1].gate_calls[-1]
    if what == "print":  # output that is too long is cut; it ends nothing
        assert "cut" in seen.result["output"]
        assert len(seen.result["output"]) < 150
    elif (name, what) == ("shell", "fill"):  # one process has failed, and the shell may continue
        assert seen.is_error
    else:
        assert seen.is_error
        assert seen.result["limit"] == limit_text(name, what)


def limit_text(name: str, what: str) -> str:
    """The text about a limit; for a shell it cannot say whether its processes compute or wait."""
    if (name, what) == ("shell", "spin"):
        return "0.3 s of running, waiting included"
    return LIMIT_TEXTS[what]


LIMIT_TEXTS = {"spin": "0.3 s of computing", "fill": "4 MiB of memory", "calls": "2 gate calls in one program"}


@pytest.mark.rule("CIRCLE-6", "CALL-3")
@pytest.mark.parametrize(
    ("ward", "told"),
    [
        (max_compute(0.25), "0.25 s"),
        (max_memory(3 * 2**19), "1.5 MiB"),
        (max_output(77), "77 characters"),
        (max_gate_calls(3), "3 "),
    ],
)
@pytest.mark.parametrize("name", sorted(TOO_MUCH))
async def test_the_capability_text_has_the_limits_of_the_circle(name: str, ward: Ward, told: str) -> None:
    crystal = scripted([{"code": TOO_MUCH[name]["after"].replace("x", "1").replace("$", "")}])
    circle = Circle(["done"], [max_turns(5), ward], medium=name)
    async with Runtime.open() as runtime:
        await runtime.cast(Cantrip(crystal, circle=circle), "go")
    (capability,) = [m.content or "" for m in crystal.invocations[0] if m.role == "system"]
    assert told in capability[capability.rindex("may") - 200 if name != "python" else capability.index("Limits") :]


@pytest.mark.rule("COMP-1", "D-009", "CIRCLE-6")
async def test_a_childs_programs_have_its_parents_limits(language: str) -> None:
    world = World(language)
    spin = TOO_MUCH[language]["spin"]
    crystal = scripted([{"code": world.says["delegate"].replace("INTENT", "'spin'")}])
    child = scripted([{"code": spin}, {"code": "done('stopped')"}])
    circle = Circle(["done", "call_agent"], [max_turns(3), max_depth(1), max_compute(0.2)], medium=language)
    if language == "javascript":
        crystal = scripted([{"code": "done(call_agent({intent: 'spin'}));"}])
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(crystal, circle=circle, child_crystal=child), "go")
        (below,) = runtime.loom.below(episode.entity_id)
        seen = runtime.loom.turns(below)[0].gate_calls[-1]
    assert episode.result == "stopped"
    assert seen.result["limit"] == "0.2 s of computing"


ASKED: dict[str, str] = {
    "python": "done(call_agent_batch([{{'intent': 'x', '{0}': {1}}}])[0])",
    "javascript": "done(call_agent_batch([{{intent: 'x', {0}: {1}}}])[0]);",
    "shell": 'done "$(call_agent x --{0} {1})"',
}


@pytest.mark.rule("COMP-1", "D-009", "CIRCLE-6")
@pytest.mark.parametrize("what", sorted(WARDS))
@pytest.mark.parametrize("name", sorted(ASKED))
async def test_a_request_can_lower_the_program_limits_of_a_child(name: str, what: str) -> None:
    @gate
    def look() -> str:
        """Look."""
        return "seen"

    says, ward = TOO_MUCH[name], WARDS[what]
    crystal = scripted(
        [{"code": ASKED[name].format(ward.name.replace("_", "-" if name == "shell" else "_"), ward.value)}]
    )
    child = scripted([{"code": says[line]} for line in ("before", what, "after")])
    circle = Circle(["done", "call_agent", "call_agent_batch", look], [max_turns(5), max_depth(1)], medium=name)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(crystal, circle=circle, child_crystal=child), "go")
        (below,) = runtime.loom.below(episode.entity_id)
        seen = runtime.loom.turns(below)[1].gate_calls[-1]
    assert str(episode.result).strip() == "1"
    if what == "print":
        assert "cut" in seen.result["output"]
    else:
        assert seen.is_error
        assert (name, what) == ("shell", "fill") or seen.result["limit"] == limit_text(name, what)


@pytest.mark.rule("COMP-1", "D-009")
async def test_a_request_cannot_raise_the_program_limits_of_a_child(language: str) -> None:
    crystal = scripted([{"code": ASKED[language].format("max_compute", 60)}])
    child = scripted([{"code": TOO_MUCH[language]["spin"]}, {"code": "done('stopped')"}])
    circle = Circle(["done", "call_agent_batch"], [max_turns(3), max_depth(1), max_compute(0.2)], medium=language)
    async with Runtime.open() as runtime:
        episode = await runtime.cast(Cantrip(crystal, circle=circle, child_crystal=child), "go")
        (below,) = runtime.loom.below(episode.entity_id)
        seen = runtime.loom.turns(below)[0].gate_calls[-1]
    assert episode.result == "stopped"
    assert seen.result["limit"] == "0.2 s of computing"


@pytest.mark.rule("COMP-8")
async def test_a_sandbox_is_closed_while_other_programs_use_all_threads(language: str) -> None:
    """Otherwise an ending entity would wait for each computing program, one after the other."""
    actor = CircleActor(Circle(["done"], medium=language))  # type: ignore[arg-type]
    await actor.handle_call(Compute("1", None, []), None)  # type: ignore[arg-type]
    limiter = circles._get_limiter()
    others = [object() for _ in range(int(limiter.total_tokens))]
    for other in others:
        await limiter.acquire_on_behalf_of(other)
    try:
        with anyio.fail_after(20):
            await actor.terminate(SHUTDOWN)
    finally:
        for other in others:
            limiter.release_on_behalf_of(other)
