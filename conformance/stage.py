"""Build the objects of a case's `setup`: crystals, gates, a circle, a cantrip, a folder.

All objects are made through the public API exactly as the case states; no defaults are added that a case may test. The
product's own errors are raised here or when the cantrip is made. Gates are the product's, except for gates that the
case describes (`behavior`, `result`, `error`, `parameters`): the runner makes those.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio

from cantrip_actors import Call, Cantrip, Circle, Crystal, Folding, Gate, Retry, replayed, scripted
from cantrip_actors.gates import standard
from conformance.cases import CRYSTAL_KEY

__all__ = ["Stage"]

_DESCRIBED = frozenset(("behavior", "result", "error", "parameters", "delay_ms"))
_UNTOUCHED: frozenset[str] = frozenset(("done", "call_agent", "call_agent_batch", "call_entity", "call_entity_batch"))


class Stage:
    """The objects of a case's setup. `folder` holds its files, and its loom if that is a file."""

    def __init__(self, setup: Mapping[str, Any], folder: Path) -> None:
        self._setup = setup
        self._folder = folder
        self.executed: list[str] = []
        """The runner's own gates that ran, in order."""
        self.own_gates: set[str] = set()
        self.crystals: dict[str, Any] = {}
        self.lengths: dict[str, int] = {}
        """How many responses each crystal has given."""
        for key, script in setup.items():
            if CRYSTAL_KEY.match(key) and script is not None:
                self._make_crystal(key, script)
        for name, script in (setup.get("crystals") or {}).items():
            self._make_crystal(str(name), script)
        for path, text in (setup.get("filesystem") or {}).items():
            file = self._inside(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")

    @property
    def url(self) -> str:
        """The URL of the loom."""
        return "memory:" if self._setup.get("loom", "memory") == "memory" else f"jsonl:{self._folder / 'loom.jsonl'}"

    def cantrip(self, crystal: str | None = None) -> Cantrip:
        """Return the cantrip; `crystal` is a key from the action. The case's missing options are left out."""
        parts: dict[str, Any] = dict(self._setup.get("cantrip") or {})
        parts["crystal"] = self.crystals[crystal] if crystal is not None else self.crystals.get("crystal")
        if (call := self._setup.get("call")) is not None:
            parts["call"] = Call(**call)
        if (circle := self._setup.get("circle")) is not None:
            parts["circle"] = self._circle(circle)
        if (folding := self._setup.get("folding")) is not None:
            parts["folding"] = Folding(**folding)
        if (retry := self._setup.get("retry")) is not None:
            parts["retry"] = Retry(**retry)
        if "child_crystal" in self.crystals:
            parts["child_crystal"] = self.crystals["child_crystal"]
        if named := self._make_crystals():
            parts["crystals"] = named
        return Cantrip(**parts)

    def has_run_out(self) -> bool:
        """Return whether a crystal was queried more often than it has responses."""
        return any(len(self.crystals[key].invocations) > length for key, length in self.lengths.items())

    def stateless(self) -> list[str]:
        """Return the crystals that a case calls stateless."""
        return [key for key in self.lengths if (self._setup.get(key) or {}).get("stateless")]

    def _make_crystals(self) -> dict[str | int, Crystal | str]:
        """Return the crystals that a request may name, and those for a depth (`child_crystal_l1`: for children)."""
        named: dict[str | int, Crystal | str] = {
            str(name): self.crystals[str(name)] for name in self._setup.get("crystals") or {}
        }
        for key in self.crystals:
            if key.startswith("child_crystal_l"):
                named[int(key.removeprefix("child_crystal_l"))] = self.crystals[key]
        return named

    def _make_crystal(self, key: str, stated: str | Mapping[str, Any]) -> None:
        if isinstance(stated, str):
            self.crystals[key] = stated
            return
        if "provider" in stated:
            self.crystals[key] = replayed(stated["provider"], stated["raw_response"])
            return
        responses = [answer for response in stated["responses"] for answer in _responses(response)]
        settings = {name: stated[name] for name in ("usage", "name", "context_window") if name in stated}
        self.crystals[key] = scripted(responses, **settings)
        self.lengths[key] = len(responses)

    def _circle(self, stated: Mapping[str, Any]) -> Circle:
        settings: dict[str, Any] = {}
        if stated.get("type") == "code":
            settings["medium"] = stated.get("language", "javascript")
        if "gates" in stated:
            settings["gates"] = [self._gate(gate) for gate in stated["gates"]]
        if "wards" in stated:
            settings["wards"] = stated["wards"]
        return Circle(**settings)

    def _gate(self, stated: str | Mapping[str, Any]) -> str | Gate:
        if isinstance(stated, str):
            return stated
        name, settings = stated["name"], {}
        for key in ("ephemeral", "visible_for", "timeout"):
            if key in stated:
                settings[key] = stated[key]
        described = _DESCRIBED & stated.keys()
        if not described:
            settings |= {key: self._inject(key, value) for key, value in (stated.get("dependencies") or {}).items()}
            return standard(name).with_(**settings) if settings else name
        if name in _UNTOUCHED:
            return Gate.of(None, name=name, parameters=stated.get("parameters"), **settings)
        self.own_gates.add(name)
        return Gate.of(
            self._function(name, stated),
            name=name,
            parameters=stated.get("parameters"),
            description=stated.get("description", ""),
            **settings,
        )

    def _function(self, name: str, stated: Mapping[str, Any]) -> Callable[..., Awaitable[Any]]:
        behavior, result = stated.get("behavior"), stated.get("result")

        async def run(**args: Any) -> Any:
            del args
            self.executed.append(name)
            if behavior == "hang":
                await anyio.sleep_forever()
            await anyio.sleep(stated.get("delay_ms", 0) / 1e3)
            if behavior == "throw":
                raise RuntimeError(stated.get("error", "thrown by the case"))
            return object() if behavior == "unserializable" else result

        return run

    def _inject(self, key: str, value: Any) -> Any:
        return self._inside(value) if key == "root" else value

    def _inside(self, path: str) -> Path:
        return self._folder / "files" / path.lstrip("/")


def _responses(stated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a response in the scripted crystal's form, repeated `times`; `delay_ms` becomes its `delay` in seconds."""
    response = {key: value for key, value in stated.items() if key not in ("times", "delay_ms")}
    if "delay_ms" in stated:
        response["delay"] = stated["delay_ms"] / 1e3
    return [response] * stated.get("times", 1)
