"""Segments of short texts, each the only passage of its document."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from features.documents.extraction.passages.passage import Passage
from features.documents.extraction.retrieval.segment import Segment, build
from features.documents.extraction.retrieval.signature import EmbeddingSignature, Signature

WORDS = Signature(cutter="whole", tokenizer_sha256="t", language="english")


def with_vectors(dimensions: int) -> Signature:
    """Return the signature of segments whose passages have vectors, too."""
    embedding = EmbeddingSignature(model_sha256="m", pooling="mean", dimensions=dimensions)
    return Signature(cutter="whole", tokenizer_sha256="t", language="english", embedding=embedding)


def segment(
    texts: Mapping[str, str], signature: Signature = WORDS, vectors: NDArray[np.float32] | None = None
) -> Segment:
    """Return a segment in which each text is a document of one passage."""
    documents = [
        (name, text, [Passage(start=0, end=len(text), num_tokens=len(text.split()))]) for name, text in texts.items()
    ]
    return build(documents, signature, vectors=vectors)
