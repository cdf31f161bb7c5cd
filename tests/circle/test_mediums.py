"""Mediums that others add: in circles, in records, by name through an installed package, and in recipes."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest

from cantrip_actors import Cantrip, Circle, InvalidCantrip, Runtime, gate, scripted
from cantrip_actors.circle.medium import Answer, Suspended
from cantrip_actors.mediums import GeneratorSandbox, Medium, ProgramCall, ProgramLimits, ProgramRun, medium
from cantrip_actors.recipes import InvalidRecipe, load_recipe
from cantrip_actors.wards import max_compute, max_turns
from tests.circle.words_medium import CAPABILITY, Words, WordsSandbox

pytestmark = pytest.mark.rule("B-20")


@gate
async def search(query: str) -> str:
    """Search the notes."""
    return f"found {query}"


@gate
async def explode() -> str:
    """Fail."""
    raise RuntimeError("the disk is full")


def acting(*programs: str, medium: Any = None, wards: tuple[Any, ...] = ()) -> Cantrip:
    crystal = scripted([{"code": program} for program in programs])
    circle = Circle(["done", search, explode], [max_turns(9), *wards], medium=medium or Words())
    return Cantrip(crystal, circle=circle)


# -------------------------------------------------------------------------------------------------------- in a circle


async def test_an_entity_acts_in_a_medium_of_a_user() -> None:
    cantrip = acting('set x 41\ncall search ["milk"]', "get x", 'call done ["ready"]')
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip, "go")
        first, second, _ = runtime.loom.turns(episode.entity_id)
    assert episode.result == "ready"
    assert "found milk" in first.observation
    assert "41" in second.observation


async def test_the_crystal_is_shown_the_capability_text_of_the_medium() -> None:
    cantrip = acting('call done ["ready"]')
    async with Runtime.open() as runtime:
        await runtime.cast(cantrip, "go")
    prompt = cantrip.crystal.invocations[0].messages[0].content
    assert CAPABILITY in prompt
    assert "search" in prompt


async def test_a_failed_gate_is_an_error_of_the_program() -> None:
    async with Runtime.open() as runtime:
        episode = await runtime.cast(acting("call explode", 'call done ["ready"]'), "go")
        first, _ = runtime.loom.turns(episode.entity_id)
    assert "the disk is full" in first.observation


@pytest.mark.parametrize(("fence", "result"), [("words", "ready"), ("", "ready"), ("python", None)])
async def test_a_program_is_a_fenced_block_with_the_name_of_the_medium(fence: str, result: str | None) -> None:
    text = f'```{fence}\ncall done ["ready"]\n```'
    cantrip = replace(acting("get x"), crystal=scripted([{"content": text}]))
    async with Runtime.open() as runtime:
        assert (await runtime.cast(cantrip, "go")).result == (result or text)


async def test_a_medium_may_name_the_fences_of_its_programs() -> None:
    medium = Words()
    medium.fences = ("wd",)
    cantrip = replace(acting(medium=medium), crystal=scripted([{"content": '```wd\ncall done ["ready"]\n```'}]))
    async with Runtime.open() as runtime:
        assert (await runtime.cast(cantrip, "go")).result == "ready"


@pytest.mark.rule("CIRCLE-9")
async def test_variables_survive_a_crash_of_the_process(tmp_path: Path) -> None:
    url = f"jsonl:{tmp_path / 'loom'}"
    cantrip = acting("set x 41", "get x", 'call done ["ready"]')
    async with Runtime.open(url, cantrips=[cantrip]) as runtime:
        await (await runtime.ensure("notes", cantrip)).send("remember")
    again = replace(cantrip, crystal=scripted([{"code": "get x"}, {"code": 'call done ["ready"]'}]))
    async with Runtime.open(url, cantrips=[again]) as runtime:
        entity = await runtime.ensure("notes", again)
        await entity.send("recall")
        assert "41" in runtime.loom.turns(entity.id)[-2].observation


async def test_a_ward_on_programs_bounds_a_medium_of_a_user() -> None:
    cantrip = acting("set x 1\nspin", "get x", 'call done ["ready"]', wards=(max_compute(0.05),))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip, "go")
        first, second, _ = runtime.loom.turns(episode.entity_id)
    assert '"limit":"0.05 s of computing"' in first.observation
    assert "no such word: get x" in second.observation  # it is undone


class Released(WordsSandbox):
    """A sandbox that notes when its resources are released."""

    released = 0

    def release(self) -> None:
        Released.released += 1


async def test_a_cancelled_cast_ends_the_program_of_a_medium_of_a_user() -> None:
    began, medium = anyio.Event(), Words()
    medium.kind, Released.released = Released, 0

    @gate
    async def note() -> None:
        """Say that the program runs."""
        began.set()

    crystal = scripted([{"code": "call note\nspin"}])
    circle = Circle(["done", note], [max_turns(9)], medium=medium)
    async with Runtime.open() as runtime:
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.cast, Cantrip(crystal, circle=circle), "go")
            await began.wait()
            group.cancel_scope.cancel()
        assert Released.released == 1


class Awaiting(WordsSandbox):
    """A sandbox whose engine can only be awaited."""

    def run(self, code: str, variables: Mapping[str, Any]) -> ProgramRun:
        text = anyio.from_thread.run(self.compute, code)
        return (yield ProgramCall("done", [text]))

    async def compute(self, code: str) -> str:
        await anyio.lowlevel.checkpoint()
        return f"computed {code}"


async def test_a_sandbox_awaits_in_the_event_loop_of_its_runtime() -> None:
    medium = Words()
    medium.kind = Awaiting
    async with Runtime.open() as runtime:
        assert (await runtime.cast(acting("it", medium=medium), "go")).result == "computed it"


# ---------------------------------------------------------------------------------------------------------- in records


async def test_the_header_and_the_cantrips_id_have_the_name_and_settings_of_a_medium() -> None:
    plain, polite = acting('call done ["ready"]'), acting('call done ["ready"]', medium=Words(greeting="hello"))
    assert plain.id == acting("get x").id != polite.id
    async with Runtime.open() as runtime:
        episode = await runtime.cast(polite, "go")
        recorded = runtime.loom.header(episode.entity_id).circle
    assert (recorded["medium"], recorded["greeting"]) == ("words", "hello")


def test_a_copy_of_a_circle_keeps_its_medium() -> None:
    circle = acting("get x").circle
    assert replace(circle, wards=[max_turns(2)]).language is circle.language


class Incomplete:
    name, engine = "incomplete", "1"


class Misnamed(Words):
    name = "Words!"


class Taken(Words):
    name = "python"


class Shadowing(Words):
    def __init__(self) -> None:
        self.settings = {"wards": 1}


@pytest.mark.parametrize(
    ("medium", "why"),
    [
        (Incomplete(), "expected a name, or a Medium; this lacks fences, settings, capability, open"),
        (Words, "expected a name, or a Medium; a class"),
        (5, "unknown medium 5: expected a name, or a Medium"),
        (Misnamed(), "medium: name: expected lower-case letters"),
        (Taken(), 'medium "python": a medium of this package has that name'),
        (Shadowing(), "and none of the names gates, medium, servers, wards"),
    ],
)
def test_a_wrong_medium_is_refused_where_it_is_given(medium: Any, why: str) -> None:
    with pytest.raises(InvalidCantrip, match=why):
        Circle(["done"], [max_turns(1)], medium=medium)


# ------------------------------------------------------------------------------------------------- by name, in recipes


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that gives `Words` the name "words" is installed."""
    point = metadata.EntryPoint("words", "tests.circle.words_medium:Words", "cantrip_actors.mediums")

    def find(*, group: str) -> metadata.EntryPoints:
        return metadata.EntryPoints([point] if group == point.group else [])

    monkeypatch.setattr(metadata, "entry_points", find)


@pytest.mark.usefixtures("_installed")
async def test_an_installed_package_gives_a_medium_a_name() -> None:
    async with Runtime.open() as runtime:
        assert (await runtime.cast(acting('call done ["ready"]', medium="words"), "go")).result == "ready"


@pytest.mark.usefixtures("_installed")
def test_an_unknown_medium_is_refused_with_the_names_of_installed_ones() -> None:
    with pytest.raises(InvalidCantrip, match='unknown medium "word": did you mean "words"'):
        Circle(["done"], [max_turns(1)], medium="word")


def write_recipe(folder: Path, medium: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(
        "crystal: {scripted: [{code: get greeting}, {code: 'call done [\"ready\"]'}]}\n"
        f"circle: {{gates: [done], wards: [{{max_turns: 3}}], medium: {medium}}}\n"
    )
    return path


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("medium", "greeting"),
    [
        ("words", None),
        ("python:tests.circle.words_medium:Words", None),
        ("{words: {greeting: hello}}", "hello"),
        ('{"python:tests.circle.words_medium:Words": {greeting: hello}}', "hello"),
    ],
)
async def test_a_recipe_names_a_medium_of_a_package_or_a_module(
    tmp_path: Path, medium: str, greeting: str | None
) -> None:
    cantrip = load_recipe(write_recipe(tmp_path, medium))
    async with Runtime.open() as runtime:
        episode = await runtime.cast(cantrip, "go")
        assert runtime.loom.header(episode.entity_id).circle.get("greeting") == greeting
    assert episode.result == "ready"


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("medium", "why"),
    [
        ("wrds", 'unknown medium "wrds": did you mean "words"'),
        ("{words: {volume: 3}}", 'medium "words": it cannot be made of these settings'),
        ("{python: {volume: 3}}", 'medium "python" takes no settings'),
        ("[words]", "medium: expected a name"),
        ("python:tests.circle.words_medium:Nothing", 'has no "Nothing"'),
    ],
)
def test_a_wrong_medium_in_a_recipe_is_a_mistake_with_its_line(tmp_path: Path, medium: str, why: str) -> None:
    with pytest.raises(InvalidRecipe) as refused:
        load_recipe(write_recipe(tmp_path, medium))
    (mistake,) = refused.value.mistakes
    assert mistake.line == 2
    assert why in mistake.text


# ------------------------------------------------------------------------------------------------- GeneratorSandbox


class Odd(GeneratorSandbox):
    """A program whose value has no JSON form, and whose calls have too many arguments."""

    def run(self, code: str, variables: Mapping[str, Any]) -> ProgramRun:
        if code == "call":
            yield ProgramCall("search", ["a", "b"])
        return object()

    def save(self) -> bytes:
        return b""

    def restore(self, snapshot: bytes) -> None:
        pass


@pytest.mark.parametrize(("code", "error"), [("value", "the program's value is a object"), ("call", "at most 1 arg")])
def test_arguments_without_a_meaning_for_a_gate_are_an_error_of_the_program(code: str, error: str) -> None:
    assert error in Odd([search.definition], ProgramLimits()).begin(code).error


def test_the_mediums_of_the_package_have_no_other_members() -> None:
    for name in ("python", "javascript"):
        chosen = medium(name)
        assert Medium in type(chosen).__mro__
        assert {member for member in vars(type(chosen)) if not member.startswith("_")} <= set(dir(Medium)) | {
            "name",
            "engine",
        }


@gate
async def weigh() -> int:
    """Return a number."""
    return 1


SHOW_NUMBER = {
    "python": ("print(n)", "print(weigh())"),
    "javascript": ("console.log(n)", "console.log(weigh())"),
    "shell": ('echo "$n"', "weigh"),
}


@pytest.mark.parametrize("language", SHOW_NUMBER)
def test_a_number_of_more_than_64_bits_is_exact_in_every_medium(language: str) -> None:
    number = 2**70 + 1
    given_number, gate_number = SHOW_NUMBER[language]
    box = medium(language).open([weigh.definition], ProgramLimits(seconds=20))
    try:
        assert str(number) in box.begin(given_number, {"n": number}).output
        waiting = box.begin(gate_number)
        assert isinstance(waiting, Suspended)
        assert str(number) in box.answer(waiting, Answer(number)).output
    finally:
        box.close()
