"""Cache of the newest vectors of questions, so that a repeated question is not embedded again."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from features.retrieval.parts import IndexParts

_KNOWN = 1000

_Key = tuple[str, str, str, str]


class KnownVectors:
    """Keyed by tenant, model with its dtype, and prefixed question. Only for use on an event loop."""

    def __init__(self) -> None:
        self._vectors: OrderedDict[_Key, NDArray[np.float32]] = OrderedDict()

    def find(self, parts: IndexParts, query: str) -> NDArray[np.float32] | None:
        """Return the vector of a question, or None."""
        return self._vectors.get(_key(parts, query))

    def keep(self, parts: IndexParts, query: str, vector: NDArray[np.float32]) -> None:
        """Keep a vector until a thousand others have been added."""
        self._vectors[_key(parts, query)] = vector
        if len(self._vectors) > _KNOWN:
            self._vectors.popitem(last=False)


def _key(parts: IndexParts, query: str) -> _Key:
    embedding = parts.signature.embedding
    assert embedding is not None, "an index with a model"
    return parts.tenant_id, embedding.model_sha256, embedding.computed_in, parts.query_prefix + query
