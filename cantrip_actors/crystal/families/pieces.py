"""A decoder of streams whose items come one after the other: a piece of another kind ends the item before it."""

from __future__ import annotations

from typing import Any, Literal

from cantrip_actors.crystal.draft import Decoder, Item


class PiecesDecoder(Decoder):
    """The base of the decoders of Cohere and Ollama, which also send thoughts back with the calls that follow them."""

    def __init__(self, model: str = "", **more: Any) -> None:
        super().__init__(model, **more)
        self._open: Item | None = None
        self._thoughts: list[str] = []

    def own_content(self) -> Any:
        """Return the thoughts, which are sent back with the calls that followed them."""
        return {"thinking": "".join(self._thoughts)} if self._thoughts and self.draft.calls else None

    def _add_text(self, kind: Literal["message", "reasoning"], text: Any) -> None:
        """Add a piece of text; anything else adds nothing."""
        if not isinstance(text, str) or not text:
            return
        self.moves = True
        if kind == "reasoning":
            self._thoughts.append(text)
        if self._open is None or self._open.kind != kind:
            self._end()
            self._open = self.draft.begin(kind)
        self.draft.add(self._open, text)

    def _end(self) -> None:
        if self._open is not None:
            self.draft.end(self._open)
            self._open = None
