"""YAML as data: what PyYAML raises for a text that it cannot read."""

from __future__ import annotations

from typing import Any, Final

UNREADABLE: Final = (ValueError, OverflowError, LookupError, AttributeError)
"""The exceptions of PyYAML, besides YAMLError, for a value that its tag does not fit: 2024-13-45, `!!int ""`,
`!!bool maybe`, `!!timestamp x`."""


def load_yaml(text: str) -> Any:
    """Return the data of a YAML text. Raises ValueError, which says what is wrong."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    except UNREADABLE as error:
        raise ValueError(f"a value that YAML cannot read: {error}") from error
    except RecursionError:
        raise ValueError("nested too deeply") from None
