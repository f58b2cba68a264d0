"""A plan as the service keeps it: bytes that every process of an extraction makes the same job of. Knows no store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import orjson

from extraction.course.corpus import Corpus
from extraction.course.job import ExtractJob, plan
from extraction.errors import ExtractionError
from extraction.fields.groups import MAX_LEAVES
from extraction.passes.excerpts import Window, likely_tokens
from extraction.scoring.calibration import Calibration

_VERSION = 1
_CORPUS_VERSION = 2
"""Of plans for an index, which releases that know none must not take for those of documents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """What was asked for, before anything is made of it."""

    schema: str
    """The JSON schema as it was given: the order of its fields counts."""
    model: str
    quotes: bool = True
    params: Mapping[str, Any] = field(default_factory=dict)
    """Of the requests."""
    max_fields: int = MAX_LEAVES
    context: int | None = None
    """How many tokens the model takes, prompt and answer: longer documents are shown in parts. None: they are not."""
    calibration: str | None = None
    """As `Calibration.to_json` writes it."""
    corpus: Corpus | None = None
    """The index that is asked; None: documents are."""

    def to_bytes(self) -> bytes:
        """Return the plan to be kept."""
        kept = asdict(self)
        if self.corpus is None:
            del kept["corpus"]
        return orjson.dumps({"version": _VERSION if self.corpus is None else _CORPUS_VERSION, **kept})

    @classmethod
    def from_bytes(cls, stored: bytes) -> Self:
        """Read what was kept. Raises ExtractionError for what another release has written."""
        found = orjson.loads(stored)
        corpus = found.pop("corpus", None)
        if found.pop("version") != (_VERSION if corpus is None else _CORPUS_VERSION):
            raise ExtractionError("the plan was kept by another release; create the extraction anew")
        return cls(**found, corpus=None if corpus is None else Corpus(**corpus))

    def job(self) -> ExtractJob:
        """Return the job. Raises SchemaError for a schema that cannot be asked."""
        made = plan(
            self.schema.encode(),
            quotes=self.quotes,
            params=self.params,
            max_fields=self.max_fields,
            apart=self.corpus is not None,
        )
        learned = None if self.calibration is None else Calibration.from_json(self.calibration)
        window = None if self.context is None else Window(max_tokens=self.context, count=likely_tokens)
        return replace(made, model=self.model, calibration=learned, window=window)
