"""How an index was made: what two parts of it, or it and a question, must have in common. Knows no index."""

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
    """As which they are kept."""
    query_prefix: str = ""
    document_prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """How passages were cut, and what is known of each."""

    cutter: str
    """`Cutter.version`."""
    tokenizer_sha256: str
    """Of the tokenizer that passages were counted by."""
    language: str
    """Of the words: see `Analyzer`."""
    embedding: EmbeddingSignature | None = None
    """None where passages have no vectors."""

    def require(self, other: Signature) -> None:
        """Raise RetrievalError, naming what differs, unless the other is the same."""
        mine, theirs = self.to_json(), other.to_json()
        different = [f"{name} {mine[name]!r} and {theirs[name]!r}" for name in mine if mine[name] != theirs[name]]
        if different:
            raise RetrievalError(f"parts of two indexes do not go together: {'; '.join(different)}. Build one anew.")

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Signature:
        """Read what `to_json` wrote."""
        embedding = said["embedding"]
        return cls(**{**said, "embedding": None if embedding is None else EmbeddingSignature(**embedding)})
