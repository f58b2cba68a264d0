"""The workers' part in an index's batches, without processes: texts are read and cut, and a model counts letters."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.course.cutting_child import Cutting, ReadDocument, cut, packed, unpacked
from features.documents.extraction.documents.limits import Limits, Progress
from jobs.lines.document_bodies import CUT_ENDPOINT
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from jobs.served_models import ModelEmbedding
from jobs.storage import tokenizers
from jobs.tables import Batch
from tests.features.documents.answering import Answering, LineFailure

MADE = ModelEmbedding(model_sha256="m1", tokenizer_sha256="t", pooling="mean", dimensions=2, max_tokens=256)
"""How the model makes its vectors."""
UNKNOWN = "UNKNOWN"
"""Text of a passage that the model cannot embed."""
NO_WORDS = "NO WORDS"
"""Text of a document that cannot be cut."""


def vector_of(text: str) -> NDArray[np.float32]:
    """Return a direction: the numbers of the letters a and b in a text."""
    found = np.array([1e-3 + text.count("a"), 1e-3 + text.count("b")], np.float32)
    return found / np.linalg.norm(found)


@dataclass
class IndexAnswering(Answering):
    """Also cuts and embeds."""

    embedded: list[str] = field(default_factory=list)
    """All inputs of the model."""
    unknown: tuple[str, ...] = ()
    """Fields of cutting that its release does not support."""
    cut_by: str | None = None
    """The version of the cutter if it is another release's."""

    def run(self, batch_id: str) -> None:
        """Process one batch."""
        self._run(batch_id)

    def _answer(self, batch: Batch, body: Mapping[str, Any]) -> dict[str, Any]:
        if batch.endpoint == CUT_ENDPOINT:
            return self._cut(body)
        if batch.endpoint == EMBEDDING_ENDPOINT:
            return self._embed(body)
        return super()._answer(batch, body)

    def _cut(self, body: Mapping[str, Any]) -> dict[str, Any]:
        names = ("max_tokens", "overlap_tokens", "language", "tokenizer_sha256")
        cutting = Cutting(**{name: body[name] for name in names if name in body and name not in self.unknown})
        tokenizer = b"" if cutting.tokenizer_sha256 is None else tokenizers.find(self.storage, body["tokenizer_sha256"])
        read = [
            ReadDocument(id=each["id"], name=each["name"], stored=self._object(each["object_key"]))
            for each in body["documents"]
        ]
        good = [each for each in read if NO_WORDS not in each.name]
        made = unpacked(cut(packed(cutting, good, tokenizer), "", Limits(), Progress()))
        signature = made.signature if self.cut_by is None else {**made.signature, "cutter": self.cut_by}
        self.cut_by = None
        return {
            "num_documents": len(good),
            "num_passages": made.num_passages,
            "size_bytes": self.storage.put(body["segment_key"], made.archived),
            "signature": signature,
            "failed": [
                {"id": each.id, "code": "time_limit", "message": "too slow"} for each in read if each not in good
            ],
        }

    def _embed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.embedded += body["input"]
        if any(UNKNOWN in text for text in body["input"]):
            raise LineFailure("context_length_exceeded")
        data = [
            {"index": index, "embedding": base64.b64encode(vector_of(text).tobytes()).decode()}
            for index, text in enumerate(body["input"])
        ]
        return {"object": "list", "data": data, "usage": {"prompt_tokens": 7, "total_tokens": 7}}
