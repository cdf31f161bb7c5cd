"""Generate docs/reference.md: the public names, their signatures and their docstrings.

The modules below export the public names (`__all__`); nothing is imported, so that the page is the same on every
Python. A docstring that says too little here has to be improved in the source.

``python -m tools.reference`` writes the page, ``--check`` only reports whether it is up to date.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

from tools.pages import ROOT, settle

PAGE = ROOT / "docs" / "reference.md"
PUBLIC = (
    "cantrip_actors",
    "cantrip_actors.wards",
    "cantrip_actors.gates",
    "cantrip_actors.crystals",
    "cantrip_actors.looms",
    "cantrip_actors.mcp",
    "cantrip_actors.mediums",
    "cantrip_actors.recipes",
    "cantrip_actors.agentic",
    "cantrip_actors.observe",
    "cantrip_actors.dispatch",
    "cantrip_actors.evals",
    "cantrip_actors.testing",
    "supervisors",
    "supervisors.testing",
)

LISTED = {
    griffe.DocstringSectionKind.parameters: "Parameters",
    griffe.DocstringSectionKind.attributes: "Attributes",
    griffe.DocstringSectionKind.returns: "Returns",
    griffe.DocstringSectionKind.yields: "Yields",
    griffe.DocstringSectionKind.raises: "Raises",
}

GENERATORS = ("_direct", "_in_loop", "_blocking", "_blocking_object")
"""The functions of `runtime/face/blocking.py` that make a method from one of another class. The first argument of
the last one is what the result becomes."""

HEAD = """\
# Reference

<!-- Made by `make docs` from the docstrings. Do not edit. -->
"""


def public_modules(root: Path) -> list[griffe.Module]:
    """Return the public modules that exist, with their re-exports resolved."""
    loader = griffe.GriffeLoader(search_paths=[root])
    there = [name for name in PUBLIC if _is_there(root, name)]
    for top in sorted({name.partition(".")[0] for name in there}):
        loader.load(top, try_relative_path=False)
    loader.resolve_aliases(implicit=False, external=False)
    modules = map(loader.modules_collection.get_member, there)
    return [module for module in modules if isinstance(module, griffe.Module)]


def _is_there(root: Path, name: str) -> bool:
    package, _, inner = name.partition(".")
    place = root / package / inner
    is_package = (root / package / "__init__.py").exists()
    return is_package and ((place / "__init__.py").exists() or (bool(inner) and place.with_suffix(".py").exists()))


def render(modules: list[griffe.Module]) -> str:
    """Return the page."""
    page = "\n".join([HEAD, *(line for module in modules for line in _module(module))])
    return re.sub(r"\n{3,}", "\n\n", page).rstrip() + "\n"


def _module(module: griffe.Module) -> Iterator[str]:
    yield from (f"## {module.path}", "")
    if module.docstring:
        yield from (_first_paragraph(module.docstring.value), "")
    for name in sorted((str(name) for name in module.exports or []), key=str.lower):
        yield from _member(name, module)


def _member(name: str, module: griffe.Module) -> Iterator[str]:
    member = module.members.get(name)
    try:
        target = member.final_target if isinstance(member, griffe.Alias) else member
    except griffe.AliasResolutionError:
        target = None  # imported from a library, whose own pages document it
    if target is None or isinstance(target, griffe.Module):
        return
    yield from (f"### {name}", "", "```text", _signature(target, name), "```", "")
    if target.docstring:
        yield from _docstring(target.docstring)
    if isinstance(target, griffe.Function):
        yield from _settings(target)
    if isinstance(target, griffe.Class):
        for own in target.functions.values():
            method = own.final_target if own.is_alias else own  # type: ignore[attr-defined]  # griffe types aliases away
            if not method.name.startswith("_") and method.docstring:
                yield f"- `{_signature(method, method.name)}`: {_first_paragraph(method.docstring.value)}"
        for attribute in target.attributes.values():
            yield from _generated(attribute)
        yield ""


def _settings(function: griffe.Function) -> Iterator[str]:
    """Yield a line for each keyword argument of `**settings: Unpack[…]`, with its docstring."""
    for parameter in function.parameters:
        if not (isinstance(parameter.annotation, griffe.ExprSubscript) and str(parameter.annotation.left) == "Unpack"):
            continue
        named = parameter.annotation.slice
        assert isinstance(named, griffe.Expr)
        found = function.modules_collection.get_member(named.canonical_path)
        target = found.final_target if isinstance(found, griffe.Alias) else found
        assert isinstance(target, griffe.Class)
        yield from (f"The keyword arguments `{parameter.name}`:", "")
        for name, key in target.attributes.items():
            words = f": {_first_paragraph(key.docstring.value)}" if key.docstring else ""
            yield f"- `{name}: {key.annotation}`{words}"
        yield ""


def _generated(attribute: griffe.Attribute) -> Iterator[str]:
    """Yield the line of a method that is made from one of another class: `cast = _blocking(Runtime.cast)`."""
    generated = attribute.value
    if not (isinstance(generated, griffe.ExprCall) and str(generated.function) in GENERATORS):
        return
    *wraps, source = generated.arguments
    assert isinstance(source, griffe.Expr)
    method = attribute.modules_collection.get_member(source.canonical_path)
    if method.docstring:
        parts = f"({_parameters(method.parameters)})", "".join(map(str, wraps)) or method.returns
        yield f"- `{attribute.name}{parts[0]} -> {parts[1]}`: {_first_paragraph(method.docstring.value)}"


def _docstring(docstring: griffe.Docstring) -> Iterator[str]:
    """Yield the docstring as Markdown: its sections of arguments, results and errors become lists."""
    for section in docstring.parse("google", warnings=False):
        if section.kind is griffe.DocstringSectionKind.text:
            yield from (section.value, "")
        elif section.kind in LISTED:
            yield from (f"{LISTED[section.kind]}:", "")
            for item in section.value:
                shown = getattr(item, "name", "") or item.annotation
                words = " ".join(item.description.split())
                yield f"- `{shown}`: {words}" if shown else f"- {words}"
            yield ""


def _signature(target: griffe.Object, name: str) -> str:
    if isinstance(target, griffe.Function):
        waits = "async " if "async" in target.labels else ""
        shown = "" if "property" in target.labels else f"({_parameters(target.parameters)})"
        returned = f" -> {target.returns}" if target.returns else ""
        return f"{waits}{name}{shown}{returned}"
    if isinstance(target, griffe.Class):
        parameters = _parameters(target.parameters) or ", ".join(_struct_fields(target))
        return f"class {name}({parameters})" if parameters else f"class {name}"
    annotation = getattr(target, "annotation", None)
    return f"{name}: {annotation}" if annotation else name


def _struct_fields(target: griffe.Class) -> Iterator[str]:
    """Yield the fields of a `Value` as parameters: msgspec makes its constructor, so griffe knows none."""
    classes = [*reversed(target.mro()), target]
    if not any(cls.path == "cantrip_actors.terms.value.Value" for cls in classes):
        return
    for cls in classes:
        for name, member in cls.members.items():
            if name.startswith("_") or not isinstance(member, griffe.Attribute):
                continue
            if "instance-attribute" in member.labels:
                default = "…" if "field(" in str(member.value) else member.value
                yield f"{name}: {member.annotation}" + (f" = {default}" if member.value else "")


def _parameters(parameters: griffe.Parameters) -> str:
    """Return the parameters as in the source, without the instance."""
    shown: list[str] = []
    keyword_only = False
    for each in parameters:
        if each.name in {"self", "cls"}:
            continue
        if each.kind is griffe.ParameterKind.keyword_only and not keyword_only:
            keyword_only = True
            shown.append("*")
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(each.kind, "")
        keyword_only = keyword_only or stars == "*"
        annotation = f": {each.annotation}" if each.annotation else ""
        default = f" = {each.default}" if each.default is not None and not stars else ""
        shown.append(f"{stars}{each.name}{annotation}{default}")
    return ", ".join(shown)


def _first_paragraph(text: str) -> str:
    return " ".join(text.strip().partition("\n\n")[0].split())


def main() -> int:
    """Write docs/reference.md, or compare it."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    options = parser.parse_args()
    return settle(PAGE, render(public_modules(ROOT)), check=options.check)


if __name__ == "__main__":
    sys.exit(main())
