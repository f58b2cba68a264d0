"""Keeps a worker's tokenizer where those find it who have no model: prepare workers, which cut passages by it.

Knows no model and no lines.
"""

from __future__ import annotations

import logging
from typing import Any

from jobs.errors import ServiceError
from jobs.storage import Storage, tokenizers
from jobs.storage.tokenizers import ModelTokenizer

log = logging.getLogger(__name__)


def kept_tokenizer(storage: Storage, backend: Any | None) -> ModelTokenizer | None:
    """Write a tokenizer of the library of that name to the store and return what is to be noted of it.

    None: there is none, or the store is away, which keeps nobody from serving the model.
    """
    if backend is None:
        return None
    own = type(backend).from_str(backend.to_str())
    own.no_truncation()  # what was called last on it is nobody else's
    own.no_padding()
    try:
        sha256 = tokenizers.keep(storage, own.to_str().encode())
    except ServiceError as error:
        log.warning("tokenizer not kept, passages of new indexes are counted by bytes error=%s", error)
        return None
    return ModelTokenizer(sha256=sha256, num_special_tokens=own.num_special_tokens_to_add(is_pair=False))
