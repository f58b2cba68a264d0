"""Convert EBNF grammars (`root ::= …`, as in llama.cpp's GBNF and vLLM's `grammar`) to llguidance's Lark.

Every character becomes a terminal of its own. llguidance's lexer takes the longest matching terminal, so `[a-z]+ "a"`
as two terminals would allow nothing, and its own converter produces these; with single characters the parser alone
decides, and the language is the one that was written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.errors import InvalidRequestError

_DEFINITION = re.compile(r"^[ \t]*[A-Za-z0-9_][A-Za-z0-9_.-]*[ \t]*::=", re.MULTILINE)

_TOKEN = re.compile(
    r"""
    (?P<blank> \s+ | \#[^\n]* )
  | (?P<defined> [A-Za-z0-9_][A-Za-z0-9_.-]* (?= \s* ::= ) )
  | (?P<sign> ::= )
  | (?P<name> [A-Za-z0-9_][A-Za-z0-9_.-]* )
  | "(?P<literal> (?: [^"\\] | \\. )* )"
  | \[(?P<characters> (?: [^\]\\] | \\. )* )\]
  | (?P<times> [*+?] | \{ \s* \d{1,9} \s* (?: , \s* \d{0,9} \s* )? \} )
  | (?P<mark> [()|.] )
    """,
    re.VERBOSE | re.DOTALL,
)
_CHARACTER = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v"} | {
    itself: itself for itself in "\"'\\/[]^-.?"
}
_ANY = r"/(?s:.)/"
_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def is_ebnf(grammar: str) -> bool:
    """Tell whether a grammar is EBNF: no rule of Lark is defined by `::=`."""
    return _DEFINITION.search(grammar) is not None


def lark_of(grammar: str) -> str:
    """Return an EBNF grammar in Lark. Raises InvalidRequestError with the line and its problem."""
    reader = _Reader()
    read = {
        "defined": reader.defined,
        "sign": reader.sign,
        "name": reader.name,
        "literal": reader.literal,
        "characters": reader.characters,
        "times": reader.times,
        "mark": reader.mark,
    }
    for kind, text, reader.line in _tokens(grammar):
        read[kind](text)
    return reader.lark()


def _tokens(grammar: str) -> Iterator[tuple[str, str, int]]:
    """Yield (kind, text, line) of a grammar's tokens, without blanks and comments."""
    position, line = 0, 1
    while position < len(grammar):
        match = _TOKEN.match(grammar, position)
        if match is None:
            raise _wrong(line, f"{grammar[position : position + 20]!r} is not understood")
        assert match.lastgroup is not None, "every alternative has a name"
        if match.lastgroup != "blank":
            yield match.lastgroup, match[match.lastgroup], line
        line += grammar.count("\n", position, match.end())
        position = match.end()


@dataclass(slots=True, kw_only=True)
class _Rule:
    """A rule being converted to Lark: one of the grammar's, or one for a pair of parentheses."""

    name: str
    alternatives: list[list[str]] = field(default_factory=lambda: [[]])

    def __str__(self) -> str:
        return f"{self.name}: " + " | ".join(" ".join(items) or '""' for items in self.alternatives)


class _Reader:
    """Reads a grammar token by token, each with the method for its kind."""

    def __init__(self) -> None:
        self.line = 1
        self._names: dict[str, str] = {}
        self._first_use: dict[str, int] = {}
        self._rules: dict[str, _Rule] = {}
        self._terminals: dict[str, str] = {}
        self._open: list[_Rule] = []  # the current rule, then the open parentheses in it

    def defined(self, name: str) -> None:
        self._close_rule()
        if self._name(name) in self._rules:
            raise _wrong(self.line, f"the rule {name} is defined twice")
        self._open = [self._new_rule(self._name(name))]

    def sign(self, _: str) -> None:
        """Skip `::=`, which has marked the name before it as a definition."""

    def name(self, name: str) -> None:
        self._first_use.setdefault(name, self.line)
        self._items.append(self._name(name))

    def literal(self, body: str) -> None:
        texts = [self._terminal(json.dumps(chr(code))) for code, _ in self._characters(body)]
        if len(texts) == 1:
            self._items.append(texts[0])
            return
        literal = self._new_rule(f"g{len(self._rules)}")
        literal.alternatives = [texts]
        self._items.append(literal.name)

    def characters(self, body: str) -> None:
        codes = self._characters(body)
        negated = codes[:1] == [(ord("^"), False)]
        ranges = list(self._ranges(codes[negated:]))
        if not ranges:
            raise _wrong(self.line, f"[{body}] holds no character")
        written = "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges)
        self._items.append(self._terminal(f"/[{'^' if negated else ''}{written}]/"))

    def times(self, text: str) -> None:
        if not self._items:
            raise _wrong(self.line, f"{text} follows nothing that can be repeated")
        least, most = _times(text)
        if most is not None and most < least:
            raise _wrong(self.line, f"{text} has the minimum {least} and the maximum {most}")
        repeated = self._items.pop()
        if most == 0:
            return
        if not repeated.isalnum():  # already a repetition
            wrapped = self._new_rule(f"g{len(self._rules)}")
            wrapped.alternatives = [[repeated]]
            repeated = wrapped.name
        self._items.append(f"{repeated}{{{least},{'' if most is None else most}}}")

    def mark(self, mark: str) -> None:
        if mark == "|":
            self._rule.alternatives.append([])
        elif mark == ".":
            self._items.append(self._terminal(_ANY))
        elif mark == "(":
            group = self._new_rule(f"g{len(self._rules)}")
            self._items.append(group.name)
            self._open.append(group)
        elif len(self._open) < 2:
            raise _wrong(self.line, "a ) has no matching (")
        else:
            self._open.pop()

    def lark(self) -> str:
        """Return the result in Lark. Raises InvalidRequestError if something is missing."""
        self._close_rule()
        if "root" not in self._names or self._names["root"] not in self._rules:
            raise _wrong(1, "there is no rule root, with which the output begins")
        for name, line in self._first_use.items():
            if self._names[name] not in self._rules:
                raise _wrong(line, f"the rule {name} is not defined")
        terminals = (f"{name}: {text}" for text, name in self._terminals.items())
        return "\n".join([f"start: {self._names['root']}", *map(str, self._rules.values()), *terminals, ""])

    @property
    def _rule(self) -> _Rule:
        if not self._open:
            raise _wrong(self.line, "this is outside of a rule; a rule begins with its name and ::=")
        return self._open[-1]

    @property
    def _items(self) -> list[str]:
        return self._rule.alternatives[-1]

    def _close_rule(self) -> None:
        if len(self._open) > 1:
            raise _wrong(self.line, "a ( is not closed")

    def _new_rule(self, name: str) -> _Rule:
        self._rules[name] = rule = _Rule(name=name)
        return rule

    def _name(self, name: str) -> str:
        return self._names.setdefault(name, f"r{len(self._names)}")

    def _terminal(self, text: str) -> str:
        return self._terminals.setdefault(text, f"T{len(self._terminals)}")

    def _characters(self, body: str) -> list[tuple[int, bool]]:
        """Return the characters, each with whether it was escaped."""
        characters = []
        for match in _CHARACTER.finditer(body):
            *digits, escaped, plain = match.groups()
            if escaped is not None and escaped not in _ESCAPED:
                raise _wrong(self.line, rf"\{escaped} is no known escape")
            codes = [int(each, 16) for each in digits if each is not None]
            code = codes[0] if codes else ord(plain if escaped is None else _ESCAPED[escaped])
            if code > _LAST or code in _SURROGATES:
                raise _wrong(self.line, f"{match[0]} is no character")
            characters.append((code, plain is None))
        return characters

    def _ranges(self, codes: list[tuple[int, bool]]) -> Iterator[tuple[int, int]]:
        index = 0
        while index < len(codes):
            first = last = codes[index][0]
            if codes[index + 1 : index + 2] == [(ord("-"), False)] and index + 2 < len(codes):
                last = codes[index + 2][0]
                index += 2
            if last < first:
                raise _wrong(self.line, f"the range {chr(first)}-{chr(last)} runs backwards")
            yield first, last
            index += 1


def _times(text: str) -> tuple[int, int | None]:
    """Return the minimum and the maximum of repetitions."""
    if text in "*+?":
        return int(text == "+"), 1 if text == "?" else None
    least, comma, most = text[1:-1].partition(",")
    if not comma:
        return int(least), int(least)
    return int(least), int(most) if most.strip() else None


def _wrong(line: int, problem: str) -> InvalidRequestError:
    return InvalidRequestError(f"The EBNF grammar cannot be used: line {line}: {problem}.")
