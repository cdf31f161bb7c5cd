"""Generate docs/reference: a page for each public module, with its names, their signatures and their docstrings.

The modules below export the public names (`__all__`, or imports for types alone); nothing is imported, so that the
pages are the same on every Python. A docstring that says too little here has to be improved in the source.

A class shows its constructor only if a user can call it: each type in it is public, or not the project's own. Methods
and attributes of private base classes stand under the class that users see.

``python -m tools.reference`` writes the pages, ``--check`` only reports whether they are up to date.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import griffe

from tools.pages import ROOT, settle

FOLDER = ROOT / "docs" / "reference"
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
    "cantrip_actors.redact",
    "cantrip_actors.http",
    "cantrip_actors.server_tools",
    "cantrip_actors.dispatch",
    "cantrip_actors.evals",
    "cantrip_actors.testing",
    "cantrip_actors.crystal.testing",
    "cantrip_actors.stream.wire",
    "cantrip_actors.loom.export",
    "cantrip_actors.loom.reading.search",
    "cantrip_actors.loom.reading.statistics",
    "cantrip_actors.cluster.ray",
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

WIDTH = 88
"""A longer signature has a line for each parameter."""

MADE = "<!-- Made by `make docs` from the docstrings. Do not edit. -->"


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
    place = root / package / inner.replace(".", "/")
    is_package = (root / package / "__init__.py").exists()
    return is_package and ((place / "__init__.py").exists() or (bool(inner) and place.with_suffix(".py").exists()))


class _Link(NamedTuple):
    """Where a public object is described: the name by which users import it, its module, and the anchor on the page."""

    name: str
    module: str
    anchor: str

    def render(self, page: str) -> str:
        """Return the link for the page of a module."""
        return f"[`{self.name}`]({'' if page == self.module else f'{self.module}.md'}#{self.anchor})"


def render(modules: list[griffe.Module]) -> dict[str, str]:
    """Return the pages by file name: one for each module, and README.md, which lists them."""
    links = {
        target.path: _Link(name, module.path, _heading(name, target).lower().replace(" ", "-"))
        for module in reversed(modules)  # the first module that exports a name has its link
        for name, target in _exported(module)
    }
    pages = {f"{module.path}.md": _Page(module, links).render() for module in modules}
    return {"README.md": _tidy(_list_modules(modules, links)), **pages}


def _list_modules(modules: list[griffe.Module], links: Mapping[str, _Link]) -> Iterator[str]:
    yield from ("# Reference", "", MADE, "", "The public names, as their docstrings describe them.", "")
    yield from ("| module | names |", "| --- | --- |")
    for module in modules:
        names = ", ".join(links[target.path].render("") for _, target in _exported(module))
        yield f"| [{module.path}]({module.path}.md) | {names} |"


def _exported(module: griffe.Module) -> list[tuple[str, griffe.Object]]:
    """Return the names that a module exports, and their objects; names from libraries are documented there."""
    lazy = [name for name, member in module.members.items() if not member.runtime]  # lazy_exports.py
    pairs = []
    for name in sorted((str(name) for name in module.exports or lazy), key=lambda name: (name.lower(), name)):
        target = _resolve_alias(module.members.get(name))
        if isinstance(target, griffe.Module):  # a file has the name of a function that it defines
            target = _resolve_alias(target.members.get(name))
        if isinstance(target, griffe.Object) and not isinstance(target, griffe.Module):
            pairs.append((name, target))
    return pairs


def _resolve_alias(member: griffe.Object | griffe.Alias | None) -> griffe.Object | None:
    try:
        return member.final_target if isinstance(member, griffe.Alias) else member
    except griffe.AliasResolutionError:
        return None


def _heading(name: str, target: griffe.Object) -> str:
    return f"class {name}" if isinstance(target, griffe.Class) else name


def _tidy(lines: Iterable[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


class _Page:
    """The page of a module. `links` has the public objects of all modules, by their paths."""

    def __init__(self, module: griffe.Module, links: Mapping[str, _Link]) -> None:
        self._module = module
        self._links = links

    def render(self) -> str:
        return _tidy(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from (f"# {self._module.path}", "", MADE, "")
        if self._module.docstring:
            yield from (_first_paragraph(self._module.docstring.value), "")
        for name, target in _exported(self._module):
            yield from (f"## {_heading(name, target)}", "")
            if isinstance(target, griffe.Class):
                yield from self._describe_class(name, target)
            else:
                yield from self._describe(name, target)

    def _describe(self, shown: str, target: griffe.Object) -> Iterator[str]:
        """Yield the signature of a function, method or constant, the public types in it, and its docstring."""
        yield from ("```text", *_signature(target, shown), "```", "")
        yield from self._list_types(target)
        if target.docstring:
            yield from _docstring(target.docstring)
        if isinstance(target, griffe.Function):
            yield from _settings(target)

    def _describe_class(self, name: str, target: griffe.Class) -> Iterator[str]:
        parameters = _parameters(target.parameters) if target.parameters else [*_struct_fields(target)]
        has_constructor = bool(parameters) and self._is_callable(target)
        shown = _call(f"class {name}", parameters) if has_constructor else [f"class {name}"]
        yield from ("```text", *shown, "```", "")
        yield from self._list_types(target)
        if target.docstring:
            yield from _docstring(target.docstring)
        methods: dict[str, griffe.Function] = {}
        attributes: dict[str, griffe.Attribute] = {}
        for cls in self._list_classes(target):
            methods |= {own: method for own, method in _list_methods(cls) if own not in methods}
            attributes |= {own: attribute for own, attribute in _list_attributes(cls) if own not in attributes}
        lines = [
            _describe_attribute(own, attribute)
            for own, attribute in attributes.items()
            if _find_type(attribute) or attribute.docstring or "class-attribute" not in attribute.labels
        ]
        if lines and (not has_constructor or any(attribute.docstring for attribute in attributes.values())):
            yield from ("Attributes:", "", *lines, "")
        for own, method in methods.items():
            yield from (f"### {name}.{own}", "")
            yield from self._describe(own, method)
        for own, attribute in attributes.items():
            yield from self._describe_generated(target, own, attribute)

    def _describe_generated(self, cls: griffe.Class, name: str, attribute: griffe.Attribute) -> Iterator[str]:
        """Yield a method that a function makes from another one: `cast = _call_blocking(Runtime.cast)`."""
        source = _find_source(attribute)
        if source is None or not source.docstring:
            return
        returns = re.sub(
            r"\b[A-Z]\w+",
            lambda match: f"Blocking{match[0]}" if f"Blocking{match[0]}" in cls.module.members else match[0],
            str(source.returns),
        )
        waits = "async " if _is_made_async(attribute) else ""
        shown = _call(f"{waits}{name}", _parameters(source.parameters), f" -> {returns}")
        yield from (f"### {cls.name}.{name}", "", "```text", *shown, "```", "")
        yield from _docstring(source.docstring)

    def _list_classes(self, target: griffe.Class) -> Iterator[griffe.Class]:
        """Yield a class and its private base classes of the project: users see their members as those of the class."""
        yield target
        for base in target.mro():
            if _is_ours(base.path) and base.path not in self._links:
                yield base

    def _is_callable(self, target: griffe.Class) -> bool:
        """Whether a user has the types that the constructor takes."""
        return all(
            path in self._links or not _is_ours(path) or not _is_class(target, path) for path in _list_paths(target)
        )

    def _list_types(self, target: griffe.Object) -> Iterator[str]:
        """Yield links to the public types in a signature, and what each private alias in it stands for."""
        if isinstance(target, griffe.Class) and not self._is_callable(target):
            return
        paths = [path for path in dict.fromkeys(_list_paths(target)) if path != target.path]
        links = {path: self._links[path] for path in paths if path in self._links}
        aliases = {path: alias for path in paths if path not in links and (alias := _find_alias(target, path))}
        if links:
            yield from (f"Types: {', '.join(link.render(self._module.path) for link in links.values())}.", "")
        for path, alias in aliases.items():
            yield from (f"`{path.rpartition('.')[2]}` is `{alias}`.", "")


def _describe_attribute(name: str, attribute: griffe.Attribute) -> str:
    annotation = _find_type(attribute)
    words = f": {_one_line(attribute.docstring.value)}" if attribute.docstring else ""
    return f"- `{name}{f': {annotation}' if annotation else ''}`{words}"


def _find_type(attribute: griffe.Attribute) -> str:
    """Return the type of an attribute: its annotation, one in a base, or that of the parameter whose value it has."""
    if attribute.annotation:
        return str(attribute.annotation)
    cls = attribute.parent
    for base in cls.mro() if isinstance(cls, griffe.Class) else ():
        inherited = base.attributes.get(attribute.name)
        if inherited is not None and inherited.annotation:
            return str(inherited.annotation)
    parameters = cls.parameters if isinstance(cls, griffe.Class) else ()
    types = {parameter.name: parameter.annotation for parameter in parameters}
    return str(types.get(str(attribute.value)) or "")


def _find_type_in(cls: griffe.Class, name: str) -> str:
    """Return the type of an attribute or a field of a class, or of its bases; "" if it has none."""
    for owner in (cls, *cls.mro()):
        attribute = owner.attributes.get(name)
        if attribute is not None and (annotation := _find_type(attribute)):
            return annotation
    return ""


def _list_methods(target: griffe.Class) -> Iterator[tuple[str, griffe.Function]]:
    """Yield the public methods of a class that have a docstring."""
    for name, own in target.functions.items():
        method = own.final_target if own.is_alias else own  # type: ignore[attr-defined]  # griffe types aliases away
        if not name.startswith("_") and method.docstring:
            yield name, method


def _list_attributes(target: griffe.Class) -> Iterator[tuple[str, griffe.Attribute]]:
    """Yield the public attributes and properties of a class."""
    for name, own in target.attributes.items():
        attribute = own.final_target if own.is_alias else own  # type: ignore[attr-defined]  # likewise
        if not name.startswith("_") and name != "model_config":  # of pydantic
            yield name, attribute


def _find_source(attribute: griffe.Attribute) -> griffe.Function | None:
    """Return the method from which an attribute of a class is made: `cast` of `cast = _call_blocking(Runtime.cast)`."""
    made = attribute.value
    if not isinstance(made, griffe.ExprCall) or not made.arguments or not isinstance(attribute.parent, griffe.Class):
        return None
    path = re.sub(r"\[.*\]", "", str(made.arguments[-1]))
    first, _, rest = path.partition(".")
    try:
        source = _get(attribute, f"{attribute.parent.resolve(first)}{rest and '.'}{rest}")
    except griffe.NameResolutionError:
        return None
    return source if isinstance(source, griffe.Function) else None


def _is_made_async(attribute: griffe.Attribute) -> bool:
    """Return whether the function that makes a method says that its result is awaited."""
    assert isinstance(attribute.value, griffe.ExprCall)
    maker = _get(attribute, attribute.value.canonical_path)
    return isinstance(maker, griffe.Function) and "Awaitable" in str(maker.returns)


def _is_ours(path: str) -> bool:
    return path.startswith(("cantrip_actors.", "supervisors."))


def _get(near: griffe.Object, path: str) -> griffe.Object | None:
    """Return the object of a path, however many imports lead to it; None for one of a library."""
    try:
        return _resolve_alias(near.modules_collection.get_member(path))
    except (KeyError, griffe.AliasResolutionError):
        return None


def _is_class(near: griffe.Object, path: str) -> bool:
    target = _get(near, path)
    return target is not None and target.is_class


def _find_alias(near: griffe.Object, path: str) -> str | None:
    """Return what an alias of the project's own stands for; None for other objects."""
    target = _get(near, path) if _is_ours(path) else None
    if not isinstance(target, griffe.Attribute) or target.value is None:
        return None
    value = _one_line(str(target.value).strip("'\""))
    return None if value.startswith(("TypeVar(", "TypeVarTuple(", "ParamSpec(", "NewType(")) else value


def _list_paths(target: griffe.Object) -> Iterator[str]:
    """Yield the paths of the names in a signature, resolved to where they are defined."""
    if isinstance(target, griffe.Class):
        annotations = [parameter.annotation for parameter in target.parameters]
    elif isinstance(target, griffe.Function):
        annotations = [*(parameter.annotation for parameter in target.parameters), target.returns]
    else:
        annotations = [getattr(target, "annotation", None)]
    for annotation in annotations:
        if isinstance(annotation, griffe.Expr):
            for part in annotation.iterate(flat=True):
                if isinstance(part, griffe.ExprName):
                    yield _resolve(target, part.canonical_path)


def _resolve(near: griffe.Object, path: str) -> str:
    target = _get(near, path)
    return path if target is None else target.path


def _settings(function: griffe.Function) -> Iterator[str]:
    """Yield a line for each keyword argument of `**settings: Unpack[…]`, with its docstring."""
    for parameter in function.parameters:
        if not (isinstance(parameter.annotation, griffe.ExprSubscript) and str(parameter.annotation.left) == "Unpack"):
            continue
        named = parameter.annotation.slice
        assert isinstance(named, griffe.Expr)
        member = function.modules_collection.get_member(named.canonical_path)
        target = member.final_target if isinstance(member, griffe.Alias) else member
        assert isinstance(target, griffe.Class)
        yield from (f"The keyword arguments `{parameter.name}`:", "")
        for name, key in target.attributes.items():
            words = f": {_first_paragraph(key.docstring.value)}" if key.docstring else ""
            yield f"- `{name}: {key.annotation}`{words}"
        yield ""


def _docstring(docstring: griffe.Docstring) -> Iterator[str]:
    """Yield the docstring as Markdown: its sections of arguments, results and errors become lists."""
    for section in docstring.parse("google", warnings=False):
        if section.kind is griffe.DocstringSectionKind.text:
            yield from (section.value, "")
        elif section.kind in LISTED:
            yield from (f"{LISTED[section.kind]}:", "")
            for item in section.value:
                shown = getattr(item, "name", "") or item.annotation
                if section.kind is griffe.DocstringSectionKind.attributes and isinstance(
                    docstring.parent, griffe.Class
                ):
                    shown = f"{shown}: {_find_type_in(docstring.parent, shown)}"
                words = _one_line(item.description)
                yield f"- `{shown}`: {words}" if shown else f"- {words}"
            yield ""


def _signature(target: griffe.Object, name: str) -> Iterator[str]:
    """Yield the lines of a signature."""
    if isinstance(target, griffe.Function):
        waits = "async " if "async" in target.labels else ""
        yield from _call(
            f"{waits}{name}", _parameters(target.parameters), f" -> {target.returns}" if target.returns else ""
        )
        return
    annotation = getattr(target, "annotation", None)
    yield f"{name}: {annotation}" if annotation else name


def _call(name: str, parameters: list[str], returns: str = "") -> list[str]:
    """Return the lines of a call: one if it is short, else one for each parameter."""
    line = f"{name}({', '.join(parameters)}){returns}"
    return [line] if len(line) <= WIDTH else [f"{name}(", *(f"    {part}," for part in parameters), f"){returns}"]


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


def _parameters(parameters: griffe.Parameters) -> list[str]:
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
    return shown


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _first_paragraph(text: str) -> str:
    return _one_line(text.strip().partition("\n\n")[0])


def main() -> int:
    """Write docs/reference, or compare it."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    options = parser.parse_args()
    pages = render(public_modules(ROOT))
    FOLDER.mkdir(exist_ok=True)
    faults = sum(settle(FOLDER / name, text, check=options.check) for name, text in pages.items())
    for page in sorted(FOLDER.glob("*.md")):
        if page.name not in pages:
            print(f"{page.relative_to(ROOT).as_posix()} is of no public module; remove it")
            faults += 1
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
