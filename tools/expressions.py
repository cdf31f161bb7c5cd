"""The regular expressions and schemas that are not ours, and the expressions of ours that foreign text can stall.

Python's `re` backtracks: a short expression can take hours on a short text, and meanwhile no other thread runs. A JSON
Schema can have such an expression, and references that double. So each of these needs a row in `USES`, with the reason
why it cannot hold up the process:

- an expression for `re`, `fnmatch` or a field of pydantic that is not written in the file, or put together from
  constants of its top level;
- names imported from `re`, and programs in a text that use `re`: neither can be checked here;
- an import of `jsonschema` or `referencing`, and a call of a function of `json_schema.py` without `foreign=True`: it
  trusts its schema.

A row whose function is gone or has no such use any more is an error, and so is a row without a reason.

An expression of ours can be slow, too: `find_growth` tries it on texts made from it, which repeat what it repeats and
then do not fit. `BOUNDED` has those that are only tried on short texts. The tests try every expression of the product.
``python -m tools.expressions`` checks the rows, as part of ``make lint``.
"""

import ast
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from re import _constants as sre  # type: ignore[attr-defined]  # the only parser of its syntax
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
CHECKED = ("supervisors", "cantrip_actors")
METHODS = frozenset({"compile", "match", "search", "fullmatch", "findall", "finditer", "sub", "subn", "split"})
ANCHORED = frozenset({"match", "fullmatch"})
GLOBS = frozenset({"fnmatch", "fnmatchcase", "filter", "translate"})
FIELDS = frozenset({"Field", "StringConstraints", "constr"})
BUILTINS = frozenset({"map", "sorted", "chr", "str", "repr", "range", "reversed", "len"})
SCHEMAS = frozenset({"jsonschema", "referencing"})
CHECKS = frozenset({"find_schema_fault", "find_misfits", "find_problems", "make_validator", "find_dangling_reference"})
_HAS_ANY = re.compile(rf"\b(?:import re|from re|fnmatch|pattern=|{'|'.join(SCHEMAS | CHECKS)})(?!\w)")
"""What a module has that has a use of any kind."""
_PROGRAM = re.compile(r"\bre\.(?:compile|match|search|fullmatch|findall|finditer|subn?|split)\(")


class Use(NamedTuple):
    """One function (``Class.method``, ``outer.inner``) of one file that uses what is not ours, and why it may."""

    file: str
    function: str
    reason: str


USES: tuple[Use, ...] = (
    Use("cantrip_actors/circle/gates/grep.py", "_main", "an entity's pattern: the process is killed after its time"),
    Use("cantrip_actors/loom/reading/search.py", "", "a reader's expression: the process is killed after its time"),
    Use(
        "cantrip_actors/crystal/provider.py",
        "Family.learn",
        "the constants of `lessons.py` and `typed_settings.py`, on a message of 600 characters",
    ),
    Use("cantrip_actors/machine/program.py", "_extract_fenced_blocks", "ours; only the number of spaces is the text's"),
    Use("cantrip_actors/redact/patterns.py", "_compile", "the sources of secrets: the operator's, and ours"),
    Use(
        "cantrip_actors/runtime/mail/questions.py",
        "Questions.contact",
        "patterns of the circle's author; `fnmatch` makes expressions that do not backtrack of them",
    ),
    Use("cantrip_actors/crystal/schemas.py", "fit_answer", "the schema that a user requires of an answer"),
    Use("cantrip_actors/crystal/schemas.py", "_NullDropper._drop_from", "a part of the same schema"),
    Use("cantrip_actors/circle/browser/notices.py", "hide_secrets", "the escaped secrets of the user, no pattern"),
    Use(
        "cantrip_actors/runtime/people/requests.py",
        "_check_json",
        "the caller says whether the schema is foreign: that of a model or a server is",
    ),
    Use("cantrip_actors/terms/call.py", "_freeze_schema", "the schema of a call's author"),
    Use("cantrip_actors/terms/gate.py", "Gate.of", "the schema of a gate's author; those of servers have an own way"),
    Use("cantrip_actors/terms/gate.py", "Gate._check_schema", "its validator was made with the gate: foreign or not"),
    *(
        Use("cantrip_actors/terms/json_schema.py", function, "the module with the bounds of schemas")
        for function in (
            "load",
            "_check_schema",
            "find_dangling_reference",
            "make_validator",
            "ForeignValidator.iter_errors",
            "_make_validator_class",
            "find_misfits",
            "find_problems",
            "_load_validator",
        )
    ),
)

BOUNDED: Mapping[tuple[str, str], int] = {
    ("cantrip_actors/circle/javascript/errors.py", "_OPERAND"): 200,  # NEAR
    ("cantrip_actors/crystal/families/chat.py", "_NULL"): 1000,  # the message of a provider's error, and its code
    ("cantrip_actors/crystal/overflow.py", "_WINDOWS"): 1000,  # the same
    ("cantrip_actors/mcp/http_client.py", "_OVER"): 2000,  # _SEARCHED
}
"""Expressions whose time grows with the square of the text, and the greatest number of its characters."""


class Place(NamedTuple):
    """Where something foreign is used, and what it is."""

    file: str
    function: str
    line: int
    what: str


class Expression(NamedTuple):
    """An expression of ours: the syntax of its text and of its flags, and whether it is only tried at one position."""

    file: str
    line: int
    name: str
    source: ast.expr
    flags: ast.expr | None
    is_anchored: bool


class Module:
    """The syntax of a module: the names of its top level, and the uses and expressions in it."""

    def __init__(self, source: str, file: str) -> None:
        self.file = file
        self.places: list[Place] = []
        self.expressions: list[Expression] = []
        if not _HAS_ANY.search(source):
            return
        self.tree = ast.parse(source, file)
        self.top = _list_bindings(self.tree.body)
        self._loads = Counter(node.id for node in _names(self.tree) if isinstance(node.ctx, ast.Load))
        matches = [node for node in ast.walk(self.tree) if isinstance(node, ast.Attribute) and node.attr in ANCHORED]
        self._matches = Counter(node.value.id for node in matches if isinstance(node.value, ast.Name))
        self._read(self.tree, (), frozenset())

    def _read(self, node: ast.AST, scope: tuple[str, ...], local: frozenset[str]) -> None:
        if _is_for_types(node):
            return
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = (*scope, node.name)
            if not isinstance(node, ast.ClassDef):
                local |= _list_parameters(node.args) | _list_bindings(node.body)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._read_import(node, scope)
        elif isinstance(node, ast.Call):
            self._read_call(node, scope, local)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _PROGRAM.search(node.value):
            self._note(node, scope, "a program in a text uses `re`")
        for child in ast.iter_child_nodes(node):
            self._read(child, scope, local)

    def _note(self, node: ast.stmt | ast.expr, scope: tuple[str, ...], what: str) -> None:
        self.places.append(Place(self.file, ".".join(scope), node.lineno, what))

    def _read_import(self, node: ast.Import | ast.ImportFrom, scope: tuple[str, ...]) -> None:
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        if isinstance(node, ast.ImportFrom) and node.module == "re":
            self._note(node, scope, "names are imported from `re`: write `import re`")
        if isinstance(node, ast.Import) and any(alias.name == "re" and alias.asname for alias in node.names):
            self._note(node, scope, "`re` has another name: write `import re`")
        for module in modules:
            if module.split(".")[0] in SCHEMAS:
                self._note(node, scope, f"`{module}` is imported")

    def _read_call(self, node: ast.Call, scope: tuple[str, ...], local: frozenset[str]) -> None:
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in METHODS and isinstance(owner, ast.Name) and owner.id == "re":
            source = _get_argument(node, 0, "pattern")
            if source is None or not self._is_ours(source, local):
                self._note(node, scope, f"the expression of `re.{name}` is not written here")
            else:
                self.expressions.append(self._make_expression(node, name, source))
        elif name in GLOBS and (owner is None or getattr(owner, "id", "") == "fnmatch"):
            pattern = _get_argument(node, 0 if name == "translate" else 1, "pat")
            if (owner is not None or name not in ("filter", "translate")) and not self._is_ours(pattern, local):
                self._note(node, scope, f"the pattern of `{name}` is not written here")
        elif name in FIELDS and not self._is_ours(_get_argument(node, None, "pattern"), local, or_none=True):
            self._note(node, scope, f"the pattern of `{name}` is not written here")
        elif name in CHECKS and not _is_true(_get_argument(node, None, "foreign")):
            self._note(node, scope, f"`{name}` trusts its schema: it is called without `foreign=True`")

    def _is_ours(self, node: ast.expr | None, local: frozenset[str], *, or_none: bool = False) -> bool:
        """Return whether an expression is made of constants, of names of the module's top level, and `re.escape`."""
        if node is None:
            return or_none
        targets = [part.target for part in ast.walk(node) if isinstance(part, ast.comprehension)]
        inner = {name.id for target in targets for name in _names(target)}
        used = {part.id for part in _walk_unescaped(node) if isinstance(part, ast.Name)} - inner
        return not used & local and used <= self.top | BUILTINS

    def _make_expression(self, node: ast.Call, method: str, source: ast.expr) -> Expression:
        position = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(method, 2)
        flags = _get_argument(node, position, "flags")
        anchored = method in ANCHORED
        name = next((target for target, value in self._assigned() if value is node), "")
        if name:
            anchored = self._is_only_matched(name)
        return Expression(self.file, node.lineno, name, source, flags, anchored)

    def _assigned(self) -> Iterator[tuple[str, ast.expr]]:
        for node in self.tree.body:
            if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
                target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                if isinstance(target, ast.Name):
                    yield target.id, node.value

    def _is_only_matched(self, name: str) -> bool:
        """Return whether a private constant is only used as `NAME.match` and `NAME.fullmatch`."""
        return name.startswith("_") and self._loads[name] > 0 and self._loads[name] == self._matches[name]


def _names(node: ast.AST) -> list[ast.Name]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Name)]


def _walk_unescaped(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression outside of `re.escape(…)`, which makes a literal of any text."""
    todo = [node]
    while todo:
        part = todo.pop()
        yield part
        if not _is_escape(part):
            todo += ast.iter_child_nodes(part)


def _is_escape(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "re.escape"


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _get_argument(node: ast.Call, position: int | None, name: str) -> ast.expr | None:
    if position is not None and len(node.args) > position:
        return node.args[position]
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)


def _list_parameters(args: ast.arguments) -> frozenset[str]:
    return frozenset(part.arg for part in ast.walk(args) if isinstance(part, ast.arg))


def _list_bindings(body: list[ast.stmt]) -> frozenset[str]:
    """Return the names that statements bind, without those of functions and classes in them."""
    names, todo = set[str](), list[ast.AST](body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        todo += ast.iter_child_nodes(node)
    return frozenset(names)


def faults(places: list[Place], table: tuple[Use, ...], files: set[str]) -> Iterator[str]:
    """Yield the problems: uses that the table does not name, rows without a reason, rows without a use."""
    allowed = {(row.file, row.function) for row in table}
    for place in places:
        if (place.file, place.function) not in allowed:
            where = f"in {place.function}" if place.function else "at the top level"
            yield (
                f"{place.file}:{place.line}: {place.what}, {where}. Foreign expressions and schemas can take for ever: "
                f"bound them, and add a row with the bound to tools/expressions.py"
            )
    standing = {(place.file, place.function) for place in places}
    for row in table:
        if not row.reason.strip():
            yield f"tools/expressions.py: {row.file} {row.function} has no reason"
        if row.file not in files:
            yield f"tools/expressions.py: {row.file} is gone; remove its rows"
        elif (row.file, row.function) not in standing:
            yield f"tools/expressions.py: {row.file} {row.function} has no such use any more; remove its row"


# ---------------------------------------------------------------------------------------- expressions that can be slow

FAST = 0.000_25
"""Seconds below which no growth is looked for: 1,000 repetitions take longer in quadratic time."""

LONG = 1000
"""Repetitions from which on a bound counts as none."""


def compile_expression(expression: Expression) -> re.Pattern[Any]:
    """Return an expression as its module makes it; texts that `re.escape` gets are the letter x."""
    namespace = vars(import_module(expression.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")))
    source = ast.Expression(ast.fix_missing_locations(_Unescape().visit(expression.source)))
    flags = ast.Expression(expression.flags or ast.Constant(0, lineno=1, col_offset=0))
    pattern = eval(compile(source, expression.file, "eval"), dict(namespace))  # noqa: S307  # our own source
    if isinstance(pattern, re.Pattern):
        return pattern
    return re.compile(pattern, eval(compile(flags, expression.file, "eval"), dict(namespace)))  # noqa: S307


class _Unescape(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:  # the name of ast
        if _is_escape(node):
            return ast.Constant("x")
        self.generic_visit(node)
        return node


def find_growth(pattern: re.Pattern[Any], *, is_anchored: bool = False) -> str | None:
    """Return a text on which an expression takes more than linear time, as Python source, or None."""
    for start, pump, end in list_attacks(pattern):
        if _grows(pattern, start, pump, end, is_anchored=is_anchored):
            return f"{start!r} + {pump!r} * n + {end!r}"
    return None


def find_slow_text(pattern: re.Pattern[Any], characters: int) -> str | None:
    """Return a text of that many characters on which an expression takes a tenth of a second, or None."""
    for start, pump, end in list_attacks(pattern):
        text = (start + pump * characters)[: characters - len(end)] + end
        if _measure(pattern, text, is_anchored=False) > 0.1:
            return text
    return None


def _grows(pattern: re.Pattern[Any], start: str, pump: str, end: str, *, is_anchored: bool) -> bool:
    def grows(small: int, large: int, factor: float) -> bool:
        """Return whether the time grows so much more than the text; measured again while it does, as others run."""
        return all(
            _measure(pattern, start + pump * large + end, is_anchored=is_anchored)
            > max(FAST, factor * large / small * _measure(pattern, start + pump * small + end, is_anchored=is_anchored))
            for _ in range(5)
        )

    # exponential, then cubic, then quadratic time: each would take too long for the sizes of the next
    return (
        grows(11, 17, 15)
        or (grows(120, 400, 5) and grows(400, 1000, 2))  # a part of bounded length costs from one size on, and no more
        or (grows(120, 1000, 1.7) and grows(1000, 4000, 2.2))
    )


def _measure(pattern: re.Pattern[Any], text: str, *, is_anchored: bool) -> float:
    """Return the processor time of one try."""
    subject = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
    began = time.thread_time()
    for find in (pattern.match, pattern.fullmatch) if is_anchored else (pattern.search,):
        find(subject)
    return time.thread_time() - began


def list_attacks(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield texts that an expression may be slow on, as a start, a part to repeat, and an end that does not fit."""
    source = pattern.pattern.decode("latin-1") if isinstance(pattern.pattern, bytes) else pattern.pattern
    parsed = _parser.parse(source, pattern.flags & ~re.DEBUG)
    characters = sorted(_list_characters(parsed))
    attacks = {
        attack: None
        for before, body in _list_repeats(parsed, "")
        for pump in filter(None, [*_sample(body, characters), *characters])
        for attack in ((before, pump), ("", before + pump), ("", pump))
    }
    for start, pump in attacks:
        yield start, pump, ""
        yield start, pump, "\x00"


def _list_repeats(parsed: Any, before: str) -> Iterator[tuple[str, Any]]:
    """Yield each part that repeats without bound, with a text that fits what stands before it."""
    for operation, argument in parsed:
        if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            _, most, body = argument
            if most == sre.MAXREPEAT or most >= LONG:
                yield before, body
            yield from _list_repeats(body, before)
        elif operation is sre.SUBPATTERN:
            yield from _list_repeats(argument[-1], before)
        elif operation is sre.BRANCH:
            for branch in argument[1]:
                yield from _list_repeats(branch, before)
        elif operation in (sre.ASSERT, sre.ASSERT_NOT):
            yield from _list_repeats(argument[1], before)
        elif operation is sre.ATOMIC_GROUP:
            yield from _list_repeats(argument, before)
        before += next(iter(_sample([(operation, argument)], ["a"])), "")


def _sample(parsed: Any, characters: list[str]) -> list[str]:
    """Return a few texts that fit a part of an expression."""
    samples = [""]
    for operation, argument in parsed:
        texts = _sample_part(operation, argument, characters)
        samples = [f"{sample}{text}" for sample in samples for text in texts][:8]
    return samples


def _sample_part(operation: Any, argument: Any, characters: list[str]) -> list[str]:
    if operation is sre.LITERAL:
        return [chr(argument)]
    if operation in (sre.IN, sre.ANY, sre.NOT_LITERAL):
        fitting = partial(_fits, operation, argument)
        own = list(filter(fitting, characters)) or list(
            filter(fitting, sorted(_list_characters([(operation, argument)])))
        )
        return own[:4] or ["a"]
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        least, _, body = argument
        return [text * max(least, 1) for text in _sample(body, characters)]
    if operation is sre.SUBPATTERN:
        return _sample(argument[-1], characters)
    if operation is sre.ATOMIC_GROUP:
        return _sample(argument, characters)
    if operation is sre.BRANCH:
        return [text for branch in argument[1] for text in _sample(branch, characters)[:2]]
    return [""]


def _fits(operation: Any, argument: Any, character: str) -> bool:
    if operation is sre.ANY:
        return character != "\n"
    if operation is sre.NOT_LITERAL:
        return chr(argument) != character
    is_negated = argument[0][0] is sre.NEGATE
    return is_negated != any(_is_in(part, character) for part in argument)


CLASSES: Mapping[Any, str] = {
    sre.CATEGORY_DIGIT: "0",
    sre.CATEGORY_SPACE: " ",
    sre.CATEGORY_WORD: "a",
    sre.CATEGORY_NOT_SPACE: "a",
    sre.CATEGORY_NOT_DIGIT: "a",
    sre.CATEGORY_NOT_WORD: "-",
}
"""A character of each class."""


def _is_in(part: tuple[Any, Any], character: str) -> bool:
    kind, argument = part
    if kind is sre.LITERAL:
        return chr(argument) == character
    if kind is sre.RANGE:
        return bool(argument[0] <= ord(character) <= argument[1])
    if kind is sre.CATEGORY:
        escape = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[str(argument).rsplit("_", 1)[1]]
        return (re.match(escape, character) is not None) != ("NOT" in str(argument))
    return False


def _list_characters(parsed: Any) -> set[str]:
    """Return the characters that an expression names, and one of each class, without most letters of its words."""
    characters = {"a", " ", "\n"}
    for operation, argument in parsed:
        if operation in (sre.LITERAL, sre.NOT_LITERAL):
            characters |= {chr(argument)} - set("bcdefghijklmnopqrstuvwxyz")
        elif operation is sre.IN:
            for kind, value in argument:
                if kind is sre.LITERAL:
                    characters |= {chr(value)} - set("bcdefghijklmnopqrstuvwxyz")
                elif kind is sre.RANGE:
                    characters.add(chr(value[0]))
                elif kind is sre.CATEGORY:
                    characters.add(CLASSES[value])
        else:
            for inner in _list_inner(operation, argument):
                characters |= _list_characters(inner)
    return characters


def _list_inner(operation: Any, argument: Any) -> list[Any]:
    if operation in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        return [argument[2]]
    if operation is sre.SUBPATTERN:
        return [argument[-1]]
    if operation is sre.BRANCH:
        return list(argument[1])
    if operation in (sre.ASSERT, sre.ASSERT_NOT):
        return [argument[1]]
    return [argument] if operation is sre.ATOMIC_GROUP else []


def read_modules() -> list[Module]:
    """Return the modules of the product."""
    paths = [path for package in CHECKED for path in sorted((ROOT / package).rglob("*.py"))]
    return [Module(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()) for path in paths]


def main() -> int:
    """Check the tree; the exit code says whether it is clean."""
    modules = read_modules()
    places = [place for module in modules for place in module.places]
    problems = list(faults(places, USES, {module.file for module in modules}))
    ours = sum(len(module.expressions) for module in modules)
    print(*problems, sep="\n") if problems else print(
        f"expressions: {ours} of ours; {len(places)} uses of others, each with its bound"
    )
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
