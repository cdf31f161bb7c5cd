"""Whether this installation has the JavaScript medium: asked when a circle wants it, and no sooner."""

from __future__ import annotations

from cantrip_actors.circle.medium import Medium
from cantrip_actors.terms.errors import InvalidCantrip

__all__ = ["make"]


def make() -> Medium:
    """The JavaScript medium; raises InvalidCantrip, saying what to install, where its engine is missing."""
    try:
        from cantrip_actors.circle.javascript.medium import JavaScript

        return JavaScript()
    except ModuleNotFoundError as missing:
        if missing.name not in ("quickjs_rs", "wasmtime", "tree_sitter", "tree_sitter_javascript"):
            raise
        raise InvalidCantrip(
            'medium "javascript" needs the engine QuickJS: pip install "cantrip-actors[js]"'
        ) from missing
