"""A map job: source, template, request and output, checked as far as possible before a row is read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from features.pipelines.rows.lines.requests import Ask, require_columns
from features.pipelines.rows.lines.table_shape import Shape, output_schema, require_apart
from features.pipelines.rows.outputs.column_types import answer_columns
from features.pipelines.rows.sources.files import Format
from features.pipelines.rows.sources.source import Source
from features.pipelines.rows.templates.template import CheckedTemplate, check
from jobs.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class MapJob:
    """One table through one prompt and one model."""

    source: Source
    template: CheckedTemplate
    ask: Ask
    shape: Shape
    form: Format
    """Format of the output."""

    def identity(self, *parts: str) -> str:
        """Return a digest of everything that determines the results, and of `parts`. Reads the source once."""
        prompt = [(part.role, part.source) for part in self.template.parts]
        thoughts = ["thoughts"] if self.shape.has_thoughts else []  # without them, that of earlier releases
        asked = [prompt, self.ask.body(), self.shape.prefix, *thoughts]
        identity = [self.source.identity(), *asked, self.form.value, parts]
        return hashlib.sha256(orjson.dumps(identity)).hexdigest()[:24]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOptions:
    """The options of a user, unparsed."""

    prompt: str
    model: str
    """The model name in the lines."""
    schema: Any = None
    """A JSON schema; None for text answers."""
    params: Mapping[str, Any] = field(default_factory=dict)
    thoughts: bool = False
    """Whether thoughts become a column."""
    prefix: str = ""


def plan(source: Source, options: MapOptions, form: Format) -> MapJob:
    """Return the job. Raises InputError if template or schema are invalid, or do not fit the source."""
    template = check(options.prompt)
    require_columns(template, source.columns)
    if "messages" in options.params or "response_format" in options.params or "model" in options.params:
        raise InputError("messages, model and response_format come from the prompt, --model and --schema.")
    columns = None if options.schema is None else answer_columns(options.schema)
    shape = Shape(answer=columns, has_thoughts=options.thoughts, prefix=options.prefix)
    require_apart(source.columns or (), shape)
    if form is Format.PARQUET:
        output_schema(source.schema, source.columns or (), shape)
    ask = Ask(model=options.model, params=options.params, schema=options.schema)
    return MapJob(source=source, template=template, ask=ask, shape=shape, form=form)
