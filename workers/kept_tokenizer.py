"""Stores a worker's tokenizer for prepare workers, which have no model and cut passages by its tokens."""

from __future__ import annotations

import logging
from typing import Any

from jobs.errors import ServiceError
from jobs.storage import Storage, tokenizers
from jobs.storage.tokenizers import ModelTokenizer

log = logging.getLogger(__name__)


def kept_tokenizer(storage: Storage, backend: Any | None) -> ModelTokenizer | None:
    """Write a tokenizer of the tokenizers library to the store and return its record.

    None if there is no such tokenizer or the store is unreachable: the model is served all the same.
    """
    if backend is None:
        return None
    own = type(backend).from_str(backend.to_str())
    own.no_truncation()  # these settings are those of the last call
    own.no_padding()
    try:
        sha256 = tokenizers.keep(storage, own.to_str().encode())
    except ServiceError as error:
        log.warning("tokenizer not kept, passages of new indexes are counted by bytes error=%s", error)
        return None
    return ModelTokenizer(sha256=sha256, num_special_tokens=own.num_special_tokens_to_add(is_pair=False))
