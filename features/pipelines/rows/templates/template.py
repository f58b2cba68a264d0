"""A prompt that was checked: its messages, and the names that it takes from a row."""

from __future__ import annotations

from dataclasses import dataclass

from features.pipelines.rows.templates.errors import TemplateRefusedError
from features.pipelines.rows.templates.limits import FUNCTIONS, MAX_SOURCE_BYTES, Limits
from features.pipelines.rows.templates.parts import Part, parts_of
from features.pipelines.rows.templates.process import RendererDiedError, RenderingProcess
from features.pipelines.rows.templates.rules import first_problem
from features.pipelines.rows.templates.tokens import blocks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Made by `check`."""

    parts: tuple[Part, ...]
    names: frozenset[str]
    """What it reads that it does not set itself: columns of a row, or `row` for all of it."""
    words: frozenset[str]
    """All names in its code that may be a row's, of what it sets itself too.

    `names` lacks some: minijinja finds none in a slice or a filter block's arguments, nor one that is set from itself.
    """


def check(source: str, *, limits: Limits | None = None) -> Template:
    """Return a template that can be rendered. Raises TemplateRefusedError with the place and what is allowed.

    Compiles in a process of its own: code that is nested deeply enough ends whoever compiles it.
    """
    size = len(source.encode(errors="replace"))
    if size > MAX_SOURCE_BYTES:
        raise TemplateRefusedError(
            f"the template has {size:,} bytes; {MAX_SOURCE_BYTES:,} are allowed. Put what is long into the rows."
        )
    if not source.strip():
        raise TemplateRefusedError("the template is empty. Write a prompt, with {{ column }} where a row's text goes.")
    if (problem := first_problem(source)) is not None:
        message, position = problem
        line, column = _place(source, position)
        raise TemplateRefusedError(message, line=line, column=column)
    parts = parts_of(source)
    return Template(parts=parts, names=_names_in(parts, limits or Limits()), words=_words_in(parts))


def _place(source: str, position: int) -> tuple[int, int]:
    return source.count("\n", 0, position) + 1, position - source.rfind("\n", 0, position)


def _words_in(parts: tuple[Part, ...]) -> frozenset[str]:
    found: set[str] = set()
    for block in (block for part in parts for block in blocks_of(part.source)):
        befores = ("", *(token.text for token in block.tokens))
        pairs = zip(befores, block.tokens, strict=False)
        found.update(token.text for before, token in pairs if token.kind == "name" and before not in (".", "|"))
    return frozenset(found - FUNCTIONS)


def _names_in(parts: tuple[Part, ...], limits: Limits) -> frozenset[str]:
    process = RenderingProcess.start([part.source for part in parts], limits)
    try:
        found = process.answer()
    except RendererDiedError as death:
        raise TemplateRefusedError(f"the template {death.reason}. Make it simpler.") from None
    finally:
        process.end()
    if "error" in found:
        first_line = parts[found["part"]].first_line
        raise TemplateRefusedError(
            f"{found['error']}.", line=first_line + found.get("line", 1) - 1, column=found.get("column")
        )
    return frozenset(found["names"])
