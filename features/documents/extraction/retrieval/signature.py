"""Signature of an index: how it was made, which its parts and queries must match."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from features.documents.extraction.errors import RetrievalError


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSignature:
    """How vectors were made."""

    model_sha256: str
    pooling: str
    dimensions: int
    dtype: str = "float16"
    """Type in which they are stored."""
    computed_in: str = "float32"
    """Dtype of the model that made them."""
    query_prefix: str = ""
    document_prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """How passages were cut and indexed."""

    cutter: str
    """`Cutter.version`."""
    tokenizer_sha256: str
    """Of the tokenizer that counted the tokens of passages."""
    language: str
    """Language of the words: see `Analyzer`."""
    embedding: EmbeddingSignature | None = None
    """None if passages have no vectors."""

    def require(self, other: Signature) -> None:
        """Raise RetrievalError naming the differences unless the signatures are equal."""
        mine, theirs = self.to_json(), other.to_json()
        different = [f"{name} {mine[name]!r} and {theirs[name]!r}" for name in mine if mine[name] != theirs[name]]
        if different:
            raise RetrievalError(f"parts of two indexes do not match: {'; '.join(different)}. Build one again.")

    def to_json(self) -> dict[str, Any]:
        """Return JSON for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Signature:
        """Read the output of `to_json`."""
        embedding = content["embedding"]
        return cls(**{**content, "embedding": None if embedding is None else EmbeddingSignature(**embedding)})
