"""What happens to a program's text before it runs: top-level `let`, `const` and `class` become `var`.

A turn is a script of its own, but its variables live on (CIRCLE-9). As JavaScript has it, a second `let x` at the top
level is an error, and what `eval` declares with `let` is gone when it ends; an entity that writes turn after turn would
stumble over the one or lose the other. So declarations at the top level are turned into `var`, with what `let x;` and a
class declaration mean kept: `x` is undefined again, and nothing on the next line is taken for a part of the class.
Whatever stands inside braces, brackets or parentheses is left alone.

This is a scanner and no parser: it knows strings, templates, comments, regular expressions, brackets and where a
statement ends without a semicolon. Where it is wrong, the program does not compile as rewritten, and is then run as it
stands (`javascript_prelude.js`). Lines stay lines, so that errors point to where they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Script", "prepare"]


@dataclass(frozen=True, slots=True)
class Script:
    """A program ready to run. `awaits`: it uses `await` outside of functions, and has to be run as such."""

    code: str
    awaits: bool = False


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int
    newline: bool
    """Whether a line ends before it."""


LONGEST: Final = 200_000
"""Characters up to which a program is looked at; that takes two microseconds each. A longer one runs as it stands."""

_WORTH_A_LOOK: Final = re.compile(r"\b(?:let|const|class|await)\b|use strict")

_TOKEN: Final = re.compile(
    r"""
    (?P<space>[ \t\v\f\r\n\u00a0\ufeff\u2028\u2029]+ | //[^\n\r\u2028\u2029]* | /\*.*?\*/ | \A\#![^\n]*)
  | (?P<name>[#]?(?:[^\W\d]|[$]|\\u(?:\w{4}|\{\w+\}))(?:\w|[$\u200c\u200d]|\\u(?:\w{4}|\{\w+\}))*)
  | (?P<number>\.?\d(?:[eE][+-]|[\w.])*)
  | (?P<string>"(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*')
  | (?P<sign>=>|\+\+|--|\?\.(?!\d)|===?|!==?|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_REGEX: Final = re.compile(r"/(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/\w*")
_TEMPLATE: Final = re.compile(r"(?:[^`\\$]|\\.|\$(?!\{))*(`|\$\{)", re.DOTALL)

_OPERAND_FOLLOWS: Final = frozenset(
    {"return", "typeof", "case", "in", "of", "delete", "void", "throw", "new", "instanceof", "else", "do", "yield"}
    | {"await", "extends"}
)
"""Words after which an expression begins, so that a slash starts a regular expression."""

_OPERATORS: Final = frozenset(("in", "of", "instanceof", "as"))
_HEADS: Final = frozenset(("if", "for", "while", "switch", "catch", "with"))
"""Words whose parentheses are followed by a block and not by the body of a function."""


def _tokens(code: str) -> Iterator[_Token]:
    """The tokens of the program, without spaces and comments. A template is tokens, too: its text and its programs.

    It ends where something has no end (a string, a comment): the engine will say so, and looking for that end again
    and again would take forever.
    """
    position, newline, last = 0, False, None
    templates: list[int] = []  # how deep in braces each open `${` is
    braces = 0
    while position < len(code):
        start = position
        if code[start] == "`" or (code[start] == "}" and templates and templates[-1] == braces):
            if code[start] == "}":
                templates.pop()
            match = _TEMPLATE.match(code, start + 1)
            if match is None:
                return
            opens = match.group(1) == "${"
            if opens:
                templates.append(braces)
            position = match.end()
            # a template counts as brackets, so that what is within is not at the top level
            kind = {("`", True): "open", ("`", False): "string", ("}", True): "middle", ("}", False): "close"}
            last = _Token(kind[code[start], opens], "`", start, position, newline)
            yield last
            newline = False
            continue
        match = _TOKEN.match(code, start)
        assert match is not None, "the last alternative takes any character"
        if match.group() == "/" and not code.startswith("/*", start) and _operand_follows(last):
            match = _REGEX.match(code, start)
            if match is None:
                return
        if match.group() in ('"', "'") or (match.group() == "/" and code.startswith("/*", start)):
            return
        position = match.end()
        text = match.group()
        if match.re is _TOKEN and match.lastgroup == "space":
            newline = newline or any(end in text for end in "\n\r\u2028\u2029")
            continue
        kind_of = "regex" if match.re is _REGEX else (match.lastgroup or "sign")
        if text in ("{", "}") and kind_of == "sign":
            braces += 1 if text == "{" else -1
        last = _Token(kind_of, text, start, position, newline)
        yield last
        newline = False


def _operand_follows(last: _Token | None) -> bool:
    """Whether a slash after this token starts a regular expression, and does not divide."""
    if last is None:
        return True
    if last.kind == "name":
        return last.text in _OPERAND_FOLLOWS
    return last.kind in ("open", "middle") or (last.kind == "sign" and last.text not in (")", "]", "}", "++", "--"))


def _is(token: _Token | None, text: str) -> bool:
    return token is not None and token.text == text


def _ends_expression(token: _Token | None) -> bool:
    return token is not None and (
        (token.kind == "name" and token.text not in _OPERAND_FOLLOWS)
        or token.kind in ("number", "string", "regex", "close")
        or token.text in (")", "]", "}", "++", "--")
    )


def _starts_operand(token: _Token) -> bool:
    return (
        (token.kind == "name" and token.text not in _OPERATORS)
        or (token.kind in ("number", "string", "regex") and token.text != "`")
        or token.text in ("{", "++", "--")
    )


@dataclass(slots=True)
class _Scan:
    """Where the scanner is in the program: how deep, in which declaration, in which function."""

    edits: list[tuple[int, int, str]] = field(default_factory=list)
    awaits: bool = False
    brackets: list[str] = field(default_factory=list)
    """What is open: "function", "block", "(" with the word before it, "[" or "`"."""
    before_parenthesis: str = ""
    """The word before the parentheses that were closed last."""
    arrows: list[int] = field(default_factory=list)
    """How deep each arrow function without braces began."""
    previous: _Token | None = None
    declaring: str = ""
    """"" outside of a top-level declaration; then "name", "named", "pattern", "value" as it goes on."""
    class_: str = ""
    """"head" and "body" of a top-level class declaration."""

    def take(self, token: _Token, following: _Token | None) -> None:
        while self.arrows and self._arrow_ends(token):
            self.arrows.pop()
        if not self.brackets and token.text not in (")", "]", "}"):
            self._top_level(token, following)
        if token.text == "await" and not (self._in_function() or self._is_member() or _is(following, ":")):
            self.awaits = True
        self._nest(token, following)
        self.previous = token

    def _arrow_ends(self, token: _Token) -> bool:
        depth, here = self.arrows[-1], len(self.brackets)
        closes = token.text in (")", "]", "}") or token.kind in ("close", "middle")
        if here == depth:
            return closes or token.text in (",", ";") or self._new_statement(token)
        return here < depth

    def _new_statement(self, token: _Token) -> bool:
        return token.newline and _ends_expression(self.previous) and _starts_operand(token)

    def _is_member(self) -> bool:
        return self.previous is not None and self.previous.text in (".", "?.")

    def _in_function(self) -> bool:
        return "function" in self.brackets or bool(self.arrows)

    def _top_level(self, token: _Token, following: _Token | None) -> None:
        if self.declaring and self._continues(token):
            return
        if token.kind != "name" or self._is_member():
            return
        named = following is not None and (following.kind == "name" or following.text in ("[", "{"))
        if token.text == "const" or (token.text == "let" and named and following is not None):
            self.edits.append((token.start, token.end, "var".ljust(len(token.text))))
            self.declaring = "name"
        elif token.text == "class" and self._at_start(token) and following is not None and following.text != "{":
            self.edits.append((token.start, token.end, f"var {following.text} = class"))
            self.class_ = "head"

    def _at_start(self, token: _Token) -> bool:
        before = self.previous
        return before is None or before.text in (";", "}") or (token.newline and _ends_expression(before))

    def _continues(self, token: _Token) -> bool:
        """Whether the token belongs to the declaration that is going on."""
        if self.declaring == "name":
            self.declaring = "named" if token.kind == "name" else "pattern"
            return True
        if self.declaring in ("named", "pattern") and token.text == "=":
            self.declaring = "value"
            return True
        if self.declaring == "named" and self.previous is not None:
            # `let x;` makes x undefined again, where `var x;` would leave it
            self.edits.append((self.previous.end, self.previous.end, " = void 0"))
        elif self.declaring == "value" and token.text not in (",", ";") and not self._new_statement(token):
            return True
        self.declaring = "name" if token.text == "," else ""
        return token.text in (",", ";")

    def _nest(self, token: _Token, following: _Token | None) -> None:
        if token.kind == "open":
            self.brackets.append("`")
        elif token.kind == "close" or (token.kind == "sign" and token.text in (")", "]", "}")):
            closed = self.brackets.pop() if self.brackets else ""
            if token.text == ")":
                self.before_parenthesis = closed[1:]
            if token.text == "}" and not self.brackets and self.class_ == "body":
                self.edits.append((token.end, token.end, ";"))
                self.class_ = ""
        elif token.kind == "sign":
            if token.text == "(":
                word = self.previous.text if self.previous is not None and self.previous.kind == "name" else ""
                self.brackets.append(f"({word}")
            elif token.text == "[":
                self.brackets.append("[")
            elif token.text == "{":
                if self.class_ == "head" and not self.brackets:
                    self.class_ = "body"
                self.brackets.append("function" if self._opens_function() else "block")
            elif token.text == "=>" and (following is None or following.text != "{"):
                self.arrows.append(len(self.brackets))

    def _opens_function(self) -> bool:
        before = self.previous
        if before is None:
            return False
        return before.text == "=>" or (before.text == ")" and self.before_parenthesis not in _HEADS)


def prepare(code: str) -> Script:
    """The program with its top-level declarations as `var`."""
    if len(code) > LONGEST or not _WORTH_A_LOOK.search(code):
        return Script(code)
    scan = _Scan()
    tokens = list(_tokens(code))
    for index, token in enumerate(tokens):
        scan.take(token, tokens[index + 1] if index + 1 < len(tokens) else None)
    if scan.declaring == "named" and scan.previous is not None:
        scan.edits.append((scan.previous.end, scan.previous.end, " = void 0"))
    if tokens and tokens[0].kind == "string" and tokens[0].text[1:-1] == "use strict":
        # what strict code declares in `eval` is gone when it ends
        scan.edits.insert(0, (tokens[0].start + 1, tokens[0].end - 1, "use_strict"))
    parts, position = [], 0
    for start, end, text in sorted(scan.edits, key=lambda edit: edit[0]):
        parts += [code[position:start], text]
        position = end
    return Script("".join([*parts, code[position:]]), scan.awaits)
