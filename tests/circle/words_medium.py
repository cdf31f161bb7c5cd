"""A small medium of a user: each line of a program is a word and its argument."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cantrip_actors.mediums import (
    GateError,
    GeneratorSandbox,
    Medium,
    ProgramCall,
    ProgramError,
    ProgramLimits,
    ProgramRun,
    Sandbox,
)
from cantrip_actors.terms.messages import ToolDefinition

CAPABILITY = "Write words: `set NAME JSON`, `get NAME`, `call GATE JSON`, `print TEXT`, `fail TEXT`, `spin`."


class WordsSandbox(GeneratorSandbox):
    """Variables, and the words that change them."""

    def __init__(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> None:
        super().__init__(gates, limits)
        self.variables: dict[str, Any] = {}

    def run(self, code: str, variables: Mapping[str, Any]) -> ProgramRun:
        self.variables.update(variables)
        value = None
        for line in code.splitlines():
            self.check_limits()
            word, _, rest = line.strip().partition(" ")
            value = yield from self.follow(word, rest)
        return value

    def follow(self, word: str, rest: str) -> ProgramRun:
        first, _, text = rest.partition(" ")
        match word:
            case "set":
                self.variables[first] = json.loads(text)
            case "get" if first in self.variables:
                return self.variables[first]
            case "call":
                return (yield from self.call(first, json.loads(text or "[]")))
            case "print":
                self.print(f"{rest}\n")
            case "repeat":
                self.print(text * int(first))
            case "fail":
                raise ProgramError(rest)
            case "spin":
                self.spin()
            case _:
                raise ProgramError(f"no such word: {word} {first}")
        return None

    def call(self, gate: str, args: Any) -> ProgramRun:
        return (yield ProgramCall(gate, args))

    def spin(self) -> None:
        while True:
            self.check_limits()

    def save(self) -> bytes:
        return json.dumps(self.variables).encode()

    def restore(self, snapshot: bytes) -> None:
        variables = json.loads(snapshot)
        if not isinstance(variables, dict):
            raise ValueError("expected variables")
        self.variables = variables


class Words(Medium):
    """The medium; `greeting` is a setting, with which each sandbox begins."""

    name, engine = "words", "words 1"
    kind: type[WordsSandbox] = WordsSandbox

    def __init__(self, greeting: str = "") -> None:
        self.settings = {"greeting": greeting} if greeting else {}

    def capability(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> str:
        return f"{CAPABILITY} Gates: {', '.join(gate.name for gate in gates)}. {limits.seconds:g} s."

    def open(self, gates: Sequence[ToolDefinition], limits: ProgramLimits) -> Sandbox:
        sandbox = self.kind(gates, limits)
        sandbox.variables |= self.settings
        return sandbox


class Catching(WordsSandbox):
    """A call that fails does not end the program: its error is printed."""

    def call(self, gate: str, args: Any) -> ProgramRun:
        try:
            return (yield ProgramCall(gate, args))
        except GateError as error:
            self.print(f"caught: {error}\n")
            return None
