"""The files of the page: HTML, a stylesheet and modules, also as the one program of a page that is a file.

A browser loads no modules from a file on disk. So `bundle` writes the modules that a program needs into one text, each
as a function of its own, in the order in which they need each other.
"""

from __future__ import annotations

import html
import re
from functools import cache
from importlib.resources import files
from typing import Final

_IMPORT: Final = re.compile(r'^import (?:(\{[^{}]*+\}) from )?"\./([^"]+)";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:const|let|class|function|async function) ([$\w]+))", re.MULTILINE)


@cache
def read_texts() -> dict[str, str]:
    """Return the texts of the page by their names."""
    folder = files(__package__).joinpath("web")
    return {
        f"{place}{file.name}": file.read_text(encoding="utf-8")
        for place, files_there in (("", folder), ("vendor/", folder.joinpath("vendor")))
        for file in files_there.iterdir()
        if file.name.endswith((".html", ".css", ".js"))
    }


def fill_page(text: str, *, title: str, head: str) -> str:
    """Return the HTML of the page with a title, and with elements in its head."""
    return text.replace("{head}", head).replace("{title}", html.escape(title))


@cache
def bundle(program: str) -> str:
    """Return a module and all that it imports as one script, which may stand inside an HTML page."""
    written: dict[str, str] = {}
    _add_module(program, written)
    script = "\n".join(['"use strict";', "const modules = {};", *written.values()])
    assert not re.search(r"</script|<script|<!--", script, re.IGNORECASE), "it would end or change the script element"
    return script


def _add_module(name: str, written: dict[str, str]) -> None:
    """Write a module after those that it imports."""
    if name in written:
        return
    text = read_texts()[name]
    for _, needed in _IMPORT.findall(text):
        _add_module(needed, written)
    if name.startswith("vendor/"):  # a script that defines a global
        written[name] = text.replace("<!--", r"<\!--")
        return
    names = ", ".join(_EXPORT.findall(text))
    body = _IMPORT.sub(_write_import, _EXPORT.sub("", text))
    written[name] = f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {names} }};\n}})();'


def _write_import(match: re.Match[str]) -> str:
    names, module = match.groups()
    return f'const {names} = modules["{module}"];' if names else ""
