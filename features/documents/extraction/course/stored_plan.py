"""A plan in its stored form, from which every process of an extraction makes the same job."""

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
"""Version 2 has passes or an index, which readers of version 1 would ignore; version 3 a rule for excerpts. Older
readers refuse newer versions."""
_OF_PASSES = ("passes", "examples_of", "examples")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """The input of an extraction."""

    schema: str
    """The JSON schema as given, with the order of its fields."""
    model: str
    quotes: bool = True
    params: Mapping[str, Any] = field(default_factory=dict)
    """Of the requests."""
    max_fields: int = MAX_LEAVES
    context: int | None = None
    """The model's context in tokens, for prompt and answer: longer documents are shown in parts. None: they are not."""
    excerpt_rule: int = EXCERPT_RULES[-1]
    """Rule for choosing the parts; meaningless without `context`."""
    calibration: str | None = None
    """In the format of `Calibration.to_json`."""
    corpus: Corpus | None = None
    """The index to ask; None: documents are asked."""

    passes: Passes = field(default_factory=Passes)
    examples_of: str | None = None
    """Source of the examples, which are added to the plan before anything is asked."""
    examples: tuple[Example, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON, without the defaults that version 1 implies."""
        kept = asdict(self)
        if self.corpus is None:
            del kept["corpus"]
        if self.context is None:
            del kept["excerpt_rule"]
        for name in () if self._has_passes else _OF_PASSES:
            del kept[name]
        return kept

    def to_bytes(self) -> bytes:
        """Return the plan in stored form."""
        has_more = self._has_passes or self.corpus is not None
        version = _WITH_RULE if self.context is not None else _WITH_MORE if has_more else _PLAIN
        return orjson.dumps({"version": version, **self.to_json()})

    @classmethod
    def from_bytes(cls, stored: bytes) -> Self:
        """Read a stored plan. Raises ExtractionError if another release wrote it."""
        content = {"excerpt_rule": EXCERPT_RULES[0], **orjson.loads(stored)}
        if content.pop("version") not in _VERSIONS or content["excerpt_rule"] not in EXCERPT_RULES:
            raise ExtractionError("the plan was stored by another release; create the extraction again")
        corpus = content.pop("corpus", None)
        passes = Passes(**content.pop("passes", {}))
        examples = tuple(Example(**each) for each in content.pop("examples", ()))
        corpus = None if corpus is None else Corpus(**corpus)
        return cls(**content, corpus=corpus, passes=passes, examples=examples)

    @property
    def _has_passes(self) -> bool:
        return self.passes.second_reading or self.passes.cover or self.examples_of is not None

    def job(self) -> ExtractJob:
        """Return the job. Raises SchemaError for a schema that cannot be asked."""
        job = plan(
            self.schema.encode(),
            quotes=self.quotes,
            params=self.params,
            max_fields=self.max_fields,
            apart=self.corpus is not None,
        )
        learned = None if self.calibration is None else Calibration.from_json(self.calibration)
        window = None if self.context is None else self._window(self.context)
        made_for = replace(job, model=self.model, passes=self.passes, examples=self.examples)
        return replace(made_for, calibration=learned, window=window)

    def _window(self, max_tokens: int) -> Window:
        return Window(max_tokens=max_tokens, count=likely_tokens, excerpt_rule=self.excerpt_rule)
