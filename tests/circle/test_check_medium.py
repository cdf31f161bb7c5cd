"""The conformance kit for mediums: it passes those that keep the laws, and names the law that a medium breaks."""

import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from cantrip_actors import InvalidCantrip
from cantrip_actors.mediums import Answer, GateError, ProgramCall, ProgramLimits, ProgramRun, Stepped, medium
from cantrip_actors.terms.messages import ToolDefinition
from cantrip_actors.testing import BrokenLaw, MediumPrograms, check_medium
from tests.circle.words_medium import Words, WordsSandbox
from tests.exhaustive import BACKENDS

pytestmark = [
    pytest.mark.rule("B-20", "CIRCLE-3", "CIRCLE-4", "CIRCLE-5", "CIRCLE-6", "CIRCLE-7", "CIRCLE-8", "CIRCLE-9"),
    pytest.mark.real_time,
]

PROGRAMS = {
    "words": MediumPrograms(
        assign="set x 41",
        read="get x",
        endless="set x 13\nspin",
        fail="fail bad luck",
        call='call search ["notes"]',
        call_twice='call search ["a"]\ncall search ["b"]',
        done='call done ["the answer"]',
        done_and_call='call done ["the answer"]\ncall search ["late"]',
        read_context="get context",
        flood="repeat 6000 x",
    ),
    "python": MediumPrograms(
        assign="x = 41",
        read="x",
        endless="x = 13\nwhile True: pass",
        fail="raise ValueError('bad luck')",
        call="search('notes')",
        call_twice="search('a')\nsearch('b')",
        done="done('the answer')",
        done_and_call="done('the answer')\nsearch('late')",
        read_context="context",
        flood="print('x' * 6000)",
        hog="x = [13]\nwhile True:\n    x += x",
    ),
    "javascript": MediumPrograms(
        assign="var x = 41",
        read="x",
        endless="x = 13\nwhile (true) {}",
        fail="throw new Error('bad luck')",
        call="search('notes')",
        call_twice="search('a'); search('b')",
        done="done('the answer')",
        done_and_call="done('the answer'); search('late')",
        read_context="context",
        flood="console.log('x'.repeat(6000))",
        hog="x = [13]; for (;;) x = x.concat(x)",
    ),
    "shell": MediumPrograms(
        assign="x=41",
        read="echo $x",
        endless="x=13\nwhile :; do :; done",
        fail="echo bad luck >&2; exit 3",
        call="search notes",
        call_twice="search a; search b",
        done='done "the answer"',
        done_and_call='done "the answer"; search late',
        read_context="echo $context",
        flood="printf 'x%.0s' {1..6000}",
    ),
}


def test_a_medium_that_keeps_the_laws_passes_on_both_backends() -> None:
    check_medium(Words(), PROGRAMS["words"], seconds=0.1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["python", "javascript"])
def test_the_mediums_of_the_package_keep_the_laws(name: str, backend: str) -> None:
    check_medium(medium(name), PROGRAMS[name], backends=[backend])


@pytest.mark.skipif(sys.platform != "linux", reason="shells are confined on Linux only")
def test_the_shell_keeps_the_laws() -> None:
    check_medium(medium("shell"), PROGRAMS["shell"], seconds=1.0, backends=["asyncio"])


# -------------------------------------------------------------------------------------------------- planted breakers


class Silent(Words):
    """Its capability text names no gates."""

    def capability(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> str:
        return "Write words."


class Hasty(WordsSandbox):
    """A program does not wait for a gate."""

    def call(self, gate: str, args: Any) -> ProgramRun:
        return "soon"
        yield


class Deaf(WordsSandbox):
    """A program does not see results."""

    def call(self, gate: str, args: Any) -> ProgramRun:
        yield ProgramCall(gate, args)


class Swallowing(WordsSandbox):
    """A gate's error is swallowed."""

    def call(self, gate: str, args: Any) -> ProgramRun:
        try:
            return (yield ProgramCall(gate, args))
        except GateError:
            return None


class Cheerful(WordsSandbox):
    """A program's own error is swallowed."""

    def follow(self, word: str, rest: str) -> ProgramRun:
        return None if word == "fail" else (yield from super().follow(word, rest))


class Generous(Words):
    """A sandbox has a gate that it was not given."""

    def open(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> WordsSandbox:
        search = ToolDefinition(
            "search", "", {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
        )
        return WordsSandbox([*(gate for gate in gates if gate.name != "search"), search], limits)


class Uncounted(Words):
    """Gate calls are not counted."""

    def open(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> WordsSandbox:
        return WordsSandbox(gates, replace(limits, gate_calls=1_000))


class Backwards(WordsSandbox):
    """The lines run from the last to the first."""

    def run(self, code: str, variables: Mapping[str, Any]) -> ProgramRun:
        return (yield from super().run("\n".join(reversed(code.splitlines())), variables))


class Endless(WordsSandbox):
    """Gates stay open after `done`."""

    def answer(self, suspended: Any, answer: Answer) -> Stepped:
        return super().answer(suspended, Answer(answer.value, answer.is_error))


class Forgetful(WordsSandbox):
    """Variables are lost between turns, though not what a snapshot restores."""

    def run(self, code: str, variables: Mapping[str, Any]) -> ProgramRun:
        kept = dict(self.variables)
        try:
            return (yield from super().run(code, variables))
        finally:
            if "set" in code:
                self.variables = kept


class Shared(WordsSandbox):
    """All sandboxes share their variables."""

    common: ClassVar[dict[str, Any]] = {}

    def __init__(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> None:
        super().__init__(gates, limits)
        self.variables = self.common


class Careless(WordsSandbox):
    """The context is not set."""

    def run(self, code: str, variables: Mapping[str, Any]) -> ProgramRun:
        return (yield from super().run(code, {}))


class Empty(WordsSandbox):
    """A snapshot does not hold the variables; a turn is undone all the same."""

    def dump(self) -> bytes:
        return b"{}"


class Trusting(WordsSandbox):
    """Any bytes are a snapshot."""

    def load(self, image: bytes) -> None:
        if image.startswith(b"{"):
            super().load(image)


class Random(WordsSandbox):
    """A program calls with different arguments each time."""

    def call(self, gate: str, args: Any) -> ProgramRun:
        return (yield ProgramCall(gate, {"query": args[0], "seed": random.random()} if gate == "search" else args))


class Slow(WordsSandbox):
    """A program is ended too late."""

    def spin(self) -> None:
        time.sleep(2.0)
        self.check_limits()


class Lasting(WordsSandbox):
    """A turn that exceeds a limit is not undone."""

    def undo_turn(self) -> None:
        pass


class Talkative(WordsSandbox):
    """The output has no bound."""

    def print(self, text: str) -> bool:
        self._output.append(text)
        return True


class Stubborn(WordsSandbox):
    """A program cannot be interrupted."""

    def interrupt(self) -> None:
        pass

    def spin(self) -> None:
        ends = time.monotonic() + 2.0
        while time.monotonic() < ends:
            time.sleep(0.01)
            self.check_limits()


class Jumpy(WordsSandbox):
    """An interrupt between two turns ends the next program."""

    def interrupt(self) -> None:
        self.jumps = True

    def run(self, code: str, variables: Mapping[str, Any]) -> ProgramRun:
        if getattr(self, "jumps", False):
            self._interrupted = True
            self.check_limits()
        return (yield from super().run(code, variables))


class Untyped(WordsSandbox):
    """A step is no step."""

    def begin(self, code: str, variables: Mapping[str, Any] | None = None) -> Any:
        super().begin(code, variables)
        return "fine"


def with_kind(kind: type[WordsSandbox]) -> Words:
    made = Words()
    made.kind = kind
    return made


@pytest.mark.parametrize(
    ("breaker", "law", "expected"),
    [
        (Silent(), "CALL-3", "a capability text with the gates"),
        (with_kind(Hasty), "CIRCLE-3", "Suspended in search"),
        (with_kind(Untyped), "CIRCLE-3", "Suspended, Finished, Raised or Exceeded, got 'fine'"),
        (with_kind(Deaf), "CIRCLE-4", 'the result "found 7341"'),
        (with_kind(Swallowing), "CIRCLE-5", 'the error "no such note 8812"'),
        (with_kind(Cheerful), "CIRCLE-5", "bad luck"),
        (Generous(), "CIRCLE-6", "no call of a gate that the sandbox does not have"),
        (Uncounted(), "CIRCLE-6", "at the second call"),
        (with_kind(Backwards), "CIRCLE-7", "'query': 'a'"),
        (with_kind(Endless), "CIRCLE-8", "no gate call after done"),
        (with_kind(Forgetful), "CIRCLE-9", "41, which an earlier program stored"),
        (with_kind(Shared), "CIRCLE-9", "no 41 in another sandbox"),
        (with_kind(Careless), "context", "17"),
        (with_kind(Empty), "snapshots", "41, which is in the loaded snapshot"),
        (with_kind(Trusting), "snapshots", "ValueError for bytes that are no snapshot"),
        (with_kind(Random), "replay", "again"),
        (with_kind(Slow), "seconds", "an end within 0.3 s"),
        (with_kind(Lasting), "seconds", "41, as before the turn that exceeded a limit"),
        (with_kind(Talkative), "output", "an output of 1000 characters"),
        (with_kind(Stubborn), "cancellation", "Exceeded at once after an interrupt"),
        (with_kind(Jumpy), "cancellation", "after an interrupt between two turns"),
    ],
)
def test_a_broken_law_is_named_with_what_was_expected_and_what_came(breaker: Words, law: str, expected: str) -> None:
    with pytest.raises(BrokenLaw) as broken:
        check_medium(breaker, PROGRAMS["words"], backends=["asyncio"])
    assert broken.value.law == law
    assert f'medium "words" breaks {law}' in str(broken.value)
    assert expected in str(broken.value)
    assert ", got " in str(broken.value)


@pytest.mark.rule("B-20")
def test_the_name_of_a_medium_is_refused_in_place_of_the_medium() -> None:
    with pytest.raises(InvalidCantrip, match=r'medium: expected a Medium, .* got its name "python"'):
        check_medium("python", None)  # type: ignore[arg-type]
