"""A checked prompt: its messages, and the names that it takes from a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from features.pipelines.rows.templates.errors import TemplateRefusedError
from features.pipelines.rows.templates.limits import FUNCTIONS, MAX_SOURCE_BYTES, Limits
from features.pipelines.rows.templates.parts import Part, parts_of
from features.pipelines.rows.templates.process import RendererDiedError, RenderingProcess
from features.pipelines.rows.templates.rules import first_problem
from features.pipelines.rows.templates.tokens import blocks_of
from jobs.errors import ServiceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A template of allowed code, created by `parse`; only compiling it tells whether all of it is valid."""

    parts: tuple[Part, ...]
    words: frozenset[str]
    """All names in its code that may be a row's, including those that it sets itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTemplate(Template):
    """A template that compiles, created by `check`."""

    names: frozenset[str]
    """The names that it reads and does not set itself: columns of a row, or `row` for the whole row.

    They are incomplete: minijinja finds none in slices and in arguments of filter blocks, nor one set from itself.
    """


def parse(source: str) -> Template:
    """Return a template whose code is allowed. Raise TemplateRefusedError with the place and what is allowed."""
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
    return Template(parts=parts, words=_words_in(parts))


def check(source: str, *, limits: Limits | None = None) -> CheckedTemplate:
    """Return a template that can be rendered. Raise TemplateRefusedError as `parse` does, or if it does not compile.

    It compiles in a separate process, as deeply nested code crashes the compiler. Raise ServiceError if somebody kills
    that.
    """
    template = parse(source)
    try:
        process, names = compiled(template, limits or Limits())
    except RendererDiedError as death:
        raise ServiceError(f"the template {death.reason} while it was checked; try again") from None
    process.end()
    return CheckedTemplate(parts=template.parts, words=template.words, names=names)


def compiled(
    template: Template, limits: Limits, *, waits: Callable[[], None] = lambda: None
) -> tuple[RenderingProcess, frozenset[str]]:
    """Return a process that has compiled a template, and the names of `CheckedTemplate`.

    `waits` is called periodically, and an exception from it ends the process. Raise TemplateRefusedError, or
    RendererDiedError if the process was killed from outside.
    """
    process = RenderingProcess.start([part.source for part in template.parts], limits, waits=waits)
    try:
        return process, _names(process.answer(), template.parts)
    except RendererDiedError as death:
        if not death.is_by_row:
            raise
        raise TemplateRefusedError(f"the template {death.reason}. Make it simpler.") from None
    except BaseException:
        process.end()
        raise


def _place(source: str, position: int) -> tuple[int, int]:
    return source.count("\n", 0, position) + 1, position - source.rfind("\n", 0, position)


def _words_in(parts: tuple[Part, ...]) -> frozenset[str]:
    words: set[str] = set()
    for block in (block for part in parts for block in blocks_of(part.source)):
        befores = ("", *(token.text for token in block.tokens))
        pairs = zip(befores, block.tokens, strict=False)
        words.update(token.text for before, token in pairs if token.kind == "name" and before not in (".", "|"))
    return frozenset(words - FUNCTIONS)


def _names(answer: Mapping[str, Any], parts: tuple[Part, ...]) -> frozenset[str]:
    if "error" in answer:
        first_line = parts[answer["part"]].first_line
        raise TemplateRefusedError(
            f"{answer['error']}.", line=first_line + answer.get("line", 1) - 1, column=answer.get("column")
        )
    return frozenset(answer["names"])
