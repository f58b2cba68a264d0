"""How long the passages of an index may be, and whose tokens say so. Creates nothing."""

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
    """Whose tokens are counted."""

    model: str
    tokenizer: ModelTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageLimits:
    """What holds for each passage of an index."""

    max_tokens: int
    overlap_tokens: int


def counted_by(session: Session, named: str | None, embedding_model: Model | None) -> CountedBy | None:
    """Return whose tokens are counted: those of the model that is named, or that embeds; None: two bytes are one.

    Raises NotFoundError, and ConflictError where no worker has kept the tokenizer of the model that is named.
    """
    model = embedding_model if named is None else served_models.find_offered(session, named)
    kept = None if model is None else tokenizers.tokenizer_of(model)
    if model is not None and kept is not None:
        return CountedBy(model=model.name, tokenizer=kept)
    if named is not None:
        raise ConflictError(
            f"No worker has kept the tokenizer of the model {named!r} yet; start one of this release (`tokenmill "
            "worker`), name another model, or leave tokenizer out. A tokenizer with code of its own is kept by none.",
            code="tokenizer_unknown",
        )
    return None


def room_in(model: Model, counted: CountedBy | None, *, prefix: str) -> int:
    """Return how many tokens a passage may have, so that the model that embeds reads all of it.

    Beside what it puts around a text, and a prefix, which has at most as many tokens as bytes. Another's tokens say
    nothing of that: then it is what the model reads. Raises ConflictError where nobody knows that yet.
    """
    reads = served_models.embedding_of(model).max_tokens
    if counted is None or counted.tokenizer != tokenizers.tokenizer_of(model):
        return reads
    return reads - counted.tokenizer.num_special_tokens - len(prefix.encode())


def passage_limits(
    max_tokens: int | None, overlap_tokens: int | None, *, room: int | None = None, model: str | None = None
) -> PassageLimits:
    """Return the limits, for what is not given those that most want. Raises InputError where they cannot be kept.

    `room` is what the `model` that embeds has for a passage.
    """
    if room is not None and room < LEAST_TOKENS:
        raise _invalid(
            f"document_prefix leaves the model {model!r} room for {max(room, 0)} tokens of a passage, which has "
            f"{LEAST_TOKENS} at least; shorten it.",
            "document_prefix",
        )
    most = MAX_PASSAGE_TOKENS if room is None else min(room, MAX_PASSAGE_TOKENS)
    if max_tokens is not None and max_tokens > most:
        has = f"the model {model!r} has room for {most:,}, its special tokens and the prefix aside"
        allowed = f"a passage may have {most:,}" if most == MAX_PASSAGE_TOKENS else has
        raise _invalid(f"max_tokens is {max_tokens:,}; {allowed}.", "max_tokens")
    size = min(DEFAULT_PASSAGE_TOKENS, most) if max_tokens is None else max_tokens
    overlap = min(DEFAULT_OVERLAP, size // MAX_OVERLAP_SHARE) if overlap_tokens is None else overlap_tokens
    try:
        Cutter(count=len, max_tokens=size, overlap_tokens=overlap)
    except PassageError as error:
        said = str(error)
        param = "max_tokens" if size < LEAST_TOKENS else "overlap_tokens"
        raise _invalid(said[:1].upper() + said[1:], param) from None
    return PassageLimits(max_tokens=size, overlap_tokens=overlap)


def _invalid(message: str, param: str) -> InputError:
    return InputError(message, param=param, code="invalid_value")
