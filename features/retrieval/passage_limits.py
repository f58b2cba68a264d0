"""Limits of an index's passages, and the tokenizer that counts them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from features.documents.extraction.errors import PassageError
from features.documents.extraction.passages.cutting import LEAST_TOKENS, MAX_OVERLAP_SHARE, Cutter
from jobs import served_models
from jobs.errors import ConflictError, InputError
from jobs.storage import tokenizers
from jobs.storage.tokenizers import ModelTokenizer
from jobs.tables import Model

MAX_PASSAGE_TOKENS = 8192
DEFAULT_PASSAGE_TOKENS = 256
DEFAULT_OVERLAP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedBy:
    """The model whose tokens are counted."""

    model: str
    tokenizer: ModelTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageLimits:
    """The limits of each passage of an index."""

    max_tokens: int
    overlap_tokens: int


def counted_by(session: Session, named: str | None, embedding_model: Model | None) -> CountedBy | None:
    """Return the tokenizer to count with: that of the named model or the embedding model; None: two bytes are a token.

    Raises NotFoundError, and ConflictError if no worker has stored the tokenizer of the named model.
    """
    model = embedding_model if named is None else served_models.find_offered(session, named)
    kept = None if model is None else tokenizers.tokenizer_of(model)
    if model is not None and kept is not None:
        return CountedBy(model=model.name, tokenizer=kept)
    if named is not None:
        raise ConflictError(
            f"No worker has stored the tokenizer of the model {named!r} yet; start one of this release (`tokenmill "
            "worker`), name another model, or leave tokenizer out. Tokenizers with their own code are never stored.",
            code="tokenizer_unknown",
        )
    return None


def room_in(model: Model, counted: CountedBy | None, *, prefix: str) -> int:
    """Return the maximum tokens of a passage that the embedding model reads completely.

    Special tokens and the prefix, which has at most as many tokens as bytes, are subtracted. If another tokenizer
    counts, the model's own limit is returned. Raises ConflictError if that is not known yet.
    """
    reads = served_models.embedding_of(model).max_tokens
    if counted is None or counted.tokenizer != tokenizers.tokenizer_of(model):
        return reads
    return reads - counted.tokenizer.num_special_tokens - len(prefix.encode())


def passage_limits(
    max_tokens: int | None, overlap_tokens: int | None, *, room: int | None = None, model: str | None = None
) -> PassageLimits:
    """Return the limits, with usual defaults. Raises InputError if they cannot be met.

    `room` is the maximum tokens that the embedding `model` has for a passage.
    """
    if room is not None and room < LEAST_TOKENS:
        raise _invalid(
            f"document_prefix leaves the model {model!r} room for {max(room, 0)} tokens of a passage, which needs at "
            f"least {LEAST_TOKENS}; shorten it.",
            "document_prefix",
        )
    most = MAX_PASSAGE_TOKENS if room is None else min(room, MAX_PASSAGE_TOKENS)
    if max_tokens is not None and max_tokens > most:
        has = f"the model {model!r} has room for {most:,} besides its special tokens and the prefix"
        allowed = f"a passage may have {most:,}" if most == MAX_PASSAGE_TOKENS else has
        raise _invalid(f"max_tokens is {max_tokens:,}; {allowed}.", "max_tokens")
    size = min(DEFAULT_PASSAGE_TOKENS, most) if max_tokens is None else max_tokens
    overlap = min(DEFAULT_OVERLAP, size // MAX_OVERLAP_SHARE) if overlap_tokens is None else overlap_tokens
    try:
        Cutter(count=len, max_tokens=size, overlap_tokens=overlap)
    except PassageError as error:
        message = str(error)
        param = "max_tokens" if size < LEAST_TOKENS else "overlap_tokens"
        raise _invalid(message[:1].upper() + message[1:], param) from None
    return PassageLimits(max_tokens=size, overlap_tokens=overlap)


def _invalid(message: str, param: str) -> InputError:
    return InputError(message, param=param, code="invalid_value")
