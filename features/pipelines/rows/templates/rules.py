"""Static checks of a template: allowed filters and statements, and no multiplication of texts.

The rendering process limits what depends on a row's values: `Limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from features.pipelines.rows.templates.limits import FILTERS, STATEMENTS
from features.pipelines.rows.templates.tokens import Block, Token, blocks_of

Problem = tuple[str, int]
"""A message, and the character of the source that it is about."""

_PRODUCTS = ("*", "**")
_OPENS = {")": "(", "]": "[", "}": "{"}
_KEYWORDS = frozenset({"and", "elif", "else", "if", "in", "is", "not", "or"})


def first_problem(source: str) -> Problem | None:
    """Return the first problem in the source, None if there is none."""
    return min((problem for block in blocks_of(source) for problem in _problems(block)), key=_place, default=None)


def _place(problem: Problem) -> int:
    return problem[1]


def _problems(block: Block) -> Iterator[Problem]:
    yield from _statement_problems(block)
    yield from _filter_problems(block)
    yield from _product_problems(block.tokens)


def _code_words(tokens: Sequence[Token]) -> Sequence[Token]:
    """Return the tokens without the sign that trims white space."""
    return tokens[1:] if tokens and tokens[0].text in ("-", "+") else tokens


def _statement_problems(block: Block) -> Iterator[Problem]:
    words = _code_words(block.tokens)
    if block.is_statement and words and words[0].kind == "name" and words[0].text not in STATEMENTS:
        allowed = _listed(name for name in STATEMENTS if not name.startswith("end"))
        yield f"{{% {words[0].text} %}} is not allowed. Allowed are: {allowed}.", words[0].position


def _filter_problems(block: Block) -> Iterator[Problem]:
    words = _code_words(block.tokens)
    if not words:
        return
    is_filter = block.is_statement and words[0].text == "filter"
    for before, word in pairwise(words):
        is_name = before.text == "|" or (is_filter and before is words[0])
        if is_name and word.kind == "name" and word.text not in FILTERS:
            yield f"there is no filter {word.text!r} here. Allowed are: {_listed(FILTERS)}.", word.position


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _product_problems(tokens: Sequence[Token]) -> Iterator[Problem]:
    for index, token in enumerate(tokens):
        if token.kind != "sign" or token.text not in _PRODUCTS:
            continue
        if _left_is_text(tokens[:index]) or _right_is_text(tokens[index + 1 :]):
            yield (
                f"`{token.text}` with a text or a list repeats it, which is not allowed. Multiply numbers only.",
                token.position,
            )


def _left_is_text(tokens: Sequence[Token]) -> bool:
    if not tokens or tokens[-1].text not in _OPENS or tokens[-1].kind != "sign":
        return bool(tokens) and tokens[-1].kind == "string"
    start = _start_of_group(tokens)
    if start > 0 and _ends_operand(tokens[start - 1]):
        return False  # a call or a subscript, whose result is unknown here
    return _is_text_group(tokens[start:])


def _right_is_text(tokens: Sequence[Token]) -> bool:
    rest = list(tokens)
    while rest and rest[0].text in ("-", "+"):
        rest.pop(0)
    if not rest:
        return False
    if rest[0].kind == "sign" and rest[0].text in _OPENS.values():
        end = _end_of_group(rest)
        return _is_unchanged(rest[end:]) and _is_text_group(rest[:end])
    return rest[0].kind == "string" and _is_unchanged(rest[1:])


def _is_unchanged(after: Sequence[Token]) -> bool:
    """Tell whether an operand is not the start of a filter, a subscript or a call, whose result may be a number."""
    return not after or after[0].text not in ("|", ".", "[", "(")


def _ends_operand(token: Token) -> bool:
    return (token.kind in ("name", "string") and token.text not in _KEYWORDS) or token.text in _OPENS


def _is_text_group(group: Sequence[Token]) -> bool:
    """Tell whether brackets hold a list, a mapping, or an expression whose result is a text: `('a' ~ b)`."""
    if group[0].text != "(":
        return True
    return any(token.kind == "string" or token.text == "~" for token in _own_words(group[1:-1]))


def _own_words(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the words outside subscripts and calls: the text in `row['price']` is not an operand."""
    skipped: list[str] = []
    before: Token | None = None
    for token in tokens:
        if token.kind == "sign" and token.text in _OPENS.values():
            if skipped or (before is not None and _ends_operand(before)):
                skipped.append(token.text)
        elif token.kind == "sign" and token.text in _OPENS and skipped:
            skipped.pop()
        elif not skipped:
            yield token
        before = token


def _start_of_group(tokens: Sequence[Token]) -> int:
    """Return the position of the bracket that the last word closes; 0 if there is none."""
    return max(0, len(tokens) - _length(list(reversed(tokens)), opens=_OPENS.__contains__))


def _end_of_group(tokens: Sequence[Token]) -> int:
    return _length(tokens, opens=set(_OPENS.values()).__contains__)


def _length(tokens: Sequence[Token], *, opens: Callable[[str], bool]) -> int:
    """Return the number of words of a group that begins with a bracket, from either side."""
    depth = 0
    for index, token in enumerate(tokens):
        if token.kind == "sign" and (token.text in _OPENS or token.text in _OPENS.values()):
            depth += 1 if opens(token.text) else -1
            if depth == 0:
                return index + 1
    return len(tokens)
