"""Parts of Python modules that users name as `module:part`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from cantrip_actors.terms.errors import InvalidCantrip, suggest_nearest


def import_part(source: str, where: str, is_listed: Callable[[Any], bool] = lambda _: True) -> Any:
    """Return the part of a module that `module:part` names; a part of a part follows a dot.

    An error begins with `where`; for an unknown part it lists those that `is_listed`. An exception of the module's own
    code passes through with its traceback, except one of an import or of syntax.

    Raises InvalidCantrip if there is no such module or part.
    """
    module, _, path = source.partition(":")
    if not (all(module.split(".")) and path):
        raise InvalidCantrip(f'{where}: expected "module:name", got "{source}"')
    try:
        target: Any = import_module(module)
    except (ImportError, SyntaxError) as error:
        raise InvalidCantrip(f"{where}: cannot import {module}: {error}") from error
    for part in path.split("."):
        if not hasattr(target, part):
            listed = [
                name for name in dir(target) if not name.startswith("_") and is_listed(getattr(target, name, None))
            ]
            raise InvalidCantrip(f'{where}: {module} has no "{part}": {suggest_nearest(part, listed)}')
        target = getattr(target, part)
    return target
