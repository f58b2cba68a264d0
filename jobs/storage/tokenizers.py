"""Tokenizers of models for processes without the model's files: stored once in the object store, by hash.

A worker writes its own before the model's row references it; unreferenced ones are swept with the leftovers. They
belong to no tenant.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from jobs.errors import NotFoundError
from jobs.storage.objects import Storage
from jobs.tables import Model

_KEY = re.compile(r"tokenizers/([0-9a-f]{64})\.json(?:#[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTokenizer:
    """A worker's description of its tokenizer."""

    sha256: str
    num_special_tokens: int
    """Number of special tokens around a text."""


def keep(storage: Storage, content: bytes) -> str:
    """Store a tokenizer in the format of the `tokenizers` library, and return its hash. Raises ServiceError.

    An existing one is rewritten, so that it is not swept before a row references it.
    """
    sha256 = hashlib.sha256(content).hexdigest()
    storage.put(_key_of(sha256), content)
    return sha256


def find(storage: Storage, sha256: str) -> bytes:
    """Return a tokenizer. Raises NotFoundError where it is missing or differs, and ServiceError."""
    content = b"".join(storage.iter_chunks(_key_of(sha256)))
    if hashlib.sha256(content).hexdigest() != sha256:
        raise NotFoundError(f"the object {_key_of(sha256)!r} is another than was written", code="object_changed")
    return content


def note_tokenizer(session: Session, model: str, tokenizer: ModelTokenizer | None) -> None:
    """Record a model's tokenizer, as its worker reports it; None: nobody else can count with it."""
    description = None if tokenizer is None else asdict(tokenizer)
    session.execute(update(Model).where(Model.name == model).values(tokenizer=description))


def tokenizer_of(model: Model) -> ModelTokenizer | None:
    """Return the tokenizer of a model; None where no worker has recorded one."""
    return None if model.tokenizer is None else ModelTokenizer(**model.tokenizer)


def of_models(session: Session, hashes: Collection[str]) -> set[str]:
    """Return those of these hashes that a model's tokenizer has."""
    sha256 = Model.tokenizer["sha256"].as_string()
    return set(session.scalars(select(sha256).where(sha256.in_(hashes))))


def is_old(storage: Storage, name: str, limit: datetime) -> bool:
    """Check again before deleting: a worker may have stored it anew meanwhile."""
    if "#" in name:
        return True
    modified_at = storage.find_modified_at(name)  # None: already deleted
    return modified_at is not None and modified_at < limit


def named_sha256(name: str) -> str | None:
    """Return the hash of the tokenizer in an object of the store, or in a part of one; None for other objects."""
    match = _KEY.fullmatch(name)
    return None if match is None else match[1]


def _key_of(sha256: str) -> str:
    return f"tokenizers/{sha256}.json"
