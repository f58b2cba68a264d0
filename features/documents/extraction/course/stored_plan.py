"""A plan as the service keeps it: bytes that every process of an extraction makes the same job of. Knows no store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import orjson

from features.documents.extraction.course.corpus import Corpus
from features.documents.extraction.course.job import ExtractJob, Passes, plan
from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.fields.groups import MAX_LEAVES
from features.documents.extraction.passes.examples import Example
from features.documents.extraction.passes.excerpts import EXCERPT_RULES, Window, likely_tokens
from features.documents.extraction.scoring.calibration import Calibration

_PLAIN, _WITH_MORE, _WITH_RULE = _VERSIONS = (1, 2, 3)
"""The second is that of plans with what readers of the first would leave out, the third of those with a rule for what
of a document is shown; readers of those before refuse them."""
_OF_PASSES = ("passes", "examples_of", "examples")


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
    excerpt_rule: int = EXCERPT_RULES[-1]
    """By which the parts are chosen; of no meaning without `context`."""
    calibration: str | None = None
    """As `Calibration.to_json` writes it."""
    corpus: Corpus | None = None
    """The index that is asked; None: documents are."""

    passes: Passes = field(default_factory=Passes)
    examples_of: str | None = None
    """Where examples come from; they are in the plan before anything is asked."""
    examples: tuple[Example, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return what the plan asks, without what readers of the first version take for granted."""
        kept = asdict(self)
        if self.corpus is None:
            del kept["corpus"]
        if self.context is None:
            del kept["excerpt_rule"]
        for name in () if self._has_passes else _OF_PASSES:
            del kept[name]
        return kept

    def to_bytes(self) -> bytes:
        """Return the plan to be kept."""
        has_more = self._has_passes or self.corpus is not None
        version = _WITH_RULE if self.context is not None else _WITH_MORE if has_more else _PLAIN
        return orjson.dumps({"version": version, **self.to_json()})

    @classmethod
    def from_bytes(cls, stored: bytes) -> Self:
        """Read what was kept. Raises ExtractionError for what another release has written."""
        found = {"excerpt_rule": EXCERPT_RULES[0], **orjson.loads(stored)}
        if found.pop("version") not in _VERSIONS or found["excerpt_rule"] not in EXCERPT_RULES:
            raise ExtractionError("the plan was kept by another release; create the extraction anew")
        corpus = found.pop("corpus", None)
        passes = Passes(**found.pop("passes", {}))
        examples = tuple(Example(**each) for each in found.pop("examples", ()))
        corpus = None if corpus is None else Corpus(**corpus)
        return cls(**found, corpus=corpus, passes=passes, examples=examples)

    @property
    def _has_passes(self) -> bool:
        return self.passes.second_reading or self.passes.cover or self.examples_of is not None

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
        window = None if self.context is None else self._window(self.context)
        given = replace(made, model=self.model, passes=self.passes, examples=self.examples)
        return replace(given, calibration=learned, window=window)

    def _window(self, max_tokens: int) -> Window:
        return Window(max_tokens=max_tokens, count=likely_tokens, excerpt_rule=self.excerpt_rule)
