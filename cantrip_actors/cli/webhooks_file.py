"""The file of `cantrip serve --webhooks`: a table `[[webhook]]` for each."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from cantrip_actors import Webhook


def read_webhooks(path: Path) -> list[Webhook]:
    """Return the webhooks of a file. Raises typer.BadParameter for one that is not as expected."""
    from cantrip_actors import Webhook

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        rows = content.pop("webhook", [])
        if content or not isinstance(rows, list):
            raise ValueError("expected only [[webhook]] tables")
        return [Webhook(**row) for row in rows]
    except (OSError, ValueError, TypeError) as error:  # TypeError: an unknown or missing setting
        raise typer.BadParameter(f"{path}: {error}", param_hint="--webhooks") from error
