"""Tokenizers of models, for those who have no model's files: kept once in the object store, under their hash.

A worker writes its own there before the model's row names it; what no row names any more is swept with the leftovers.
They are no tenant's.
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
    """What a worker says of the tokenizer that it reads texts with."""

    sha256: str
    num_special_tokens: int
    """That it puts around a text."""


def keep(storage: Storage, content: bytes) -> str:
    """Write a tokenizer, as the library of that name does, and return its hash. Raises ServiceError.

    One that is there is written anew, so that nobody sweeps it before a row names it.
    """
    sha256 = hashlib.sha256(content).hexdigest()
    storage.put(_key_of(sha256), content)
    return sha256


def find(storage: Storage, sha256: str) -> bytes:
    """Return a tokenizer. Raises NotFoundError where it is gone, or is another, and ServiceError."""
    content = b"".join(storage.iter_chunks(_key_of(sha256)))
    if hashlib.sha256(content).hexdigest() != sha256:
        raise NotFoundError(f"the object {_key_of(sha256)!r} is another than was written", code="object_changed")
    return content


def note_tokenizer(session: Session, model: str, kept: ModelTokenizer | None) -> None:
    """Note which tokenizer a model has, as its worker found; None: one that nobody else can count by."""
    said = None if kept is None else asdict(kept)
    session.execute(update(Model).where(Model.name == model).values(tokenizer=said))


def tokenizer_of(model: Model) -> ModelTokenizer | None:
    """Return the tokenizer of a model; None where no worker has noted one."""
    return None if model.tokenizer is None else ModelTokenizer(**model.tokenizer)


def of_models(session: Session, hashes: Collection[str]) -> set[str]:
    """Return those of these hashes that a model's tokenizer has."""
    sha256 = Model.tokenizer["sha256"].as_string()
    return set(session.scalars(select(sha256).where(sha256.in_(hashes))))


def is_old(storage: Storage, name: str, limit: datetime) -> bool:
    """Tell it again of an object that was: a worker may have kept it anew meanwhile."""
    if "#" in name:
        return True
    modified_at = storage.find_modified_at(name)  # None: another has deleted it
    return modified_at is not None and modified_at < limit


def named_sha256(name: str) -> str | None:
    """Return the hash of the tokenizer that an object of the store, or the part of one, is; None: it is none."""
    match = _KEY.fullmatch(name)
    return None if match is None else match[1]


def _key_of(sha256: str) -> str:
    return f"tokenizers/{sha256}.json"
