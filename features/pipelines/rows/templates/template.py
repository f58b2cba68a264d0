"""A checked prompt: its messages, and the names that it takes from a row."""

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
    """A checked template, created by `check`."""

    parts: tuple[Part, ...]
    names: frozenset[str]
    """The names that it reads and does not set itself: columns of a row, or `row` for the whole row."""
    words: frozenset[str]
    """All names in its code that may be a row's, including those that it sets itself.

    `names` is incomplete: minijinja finds none in slices and in arguments of filter blocks, nor one set from itself.
    """


def check(source: str, *, limits: Limits | None = None) -> Template:
    """Return a template that can be rendered. Raise TemplateRefusedError with the place and what is allowed.

    It compiles in a separate process, as deeply nested code crashes the compiler.
    """
    size = len(source.encode(errors="replace"))
    if size > MAX_SOURCE_BYTES:
        raise TemplateRefusedError(
            f"the template has {size:,} bytes; {MAX_SOURCE_BYTES:,} are allowed. Move long texts into the rows."
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
    words: set[str] = set()
    for block in (block for part in parts for block in blocks_of(part.source)):
        befores = ("", *(token.text for token in block.tokens))
        pairs = zip(befores, block.tokens, strict=False)
        words.update(token.text for before, token in pairs if token.kind == "name" and before not in (".", "|"))
    return frozenset(words - FUNCTIONS)


def _names_in(parts: tuple[Part, ...], limits: Limits) -> frozenset[str]:
    process = RenderingProcess.start([part.source for part in parts], limits)
    try:
        answer = process.answer()
    except RendererDiedError as death:
        raise TemplateRefusedError(f"the template {death.reason}. Make it simpler.") from None
    finally:
        process.end()
    if "error" in answer:
        first_line = parts[answer["part"]].first_line
        raise TemplateRefusedError(
            f"{answer['error']}.", line=first_line + answer.get("line", 1) - 1, column=answer.get("column")
        )
    return frozenset(answer["names"])
