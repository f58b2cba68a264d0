"""The question of one search, embedded like any text: by a batch of one line in the tenant's best class.

The caller waits for it briefly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from features.documents.collections.embedders import Embedder
from features.retrieval.lifecycle import INDEXES
from features.retrieval.parts import IndexParts, parts_of
from features.retrieval.segments import vector_of
from jobs.batches import lifecycle, made_inputs
from jobs.batches.results import read_finished_lines
from jobs.batches.submission import CreateBatch
from jobs.chunks import fleet
from jobs.errors import InputError, UnservedError
from jobs.files import MIN_EXPIRY_SECONDS, NewFile
from jobs.lines.embedding_bodies import EMBEDDING_ENDPOINT
from jobs.served_models import require_same
from jobs.settings import Settings
from jobs.states import TERMINAL_BATCH_STATES, AskedPriority, BatchState
from jobs.tables import Tenant

INSTEAD = "search with mode=bm25, which needs no model"


def require_served(session: Session, parts: IndexParts) -> None:
    """Raise UnservedError if no worker embeds questions now, ConflictError if the model has changed."""
    model, embedding = parts.embedding_model, parts.signature.embedding
    assert model is not None, "an index with a model"
    assert embedding is not None, "an index with a model"
    require_same(session, model, embedding)
    if not fleet.live_workers(session, model=model):
        raise UnservedError(
            f"No running worker serves the model {model!r}, which embeds the question. Start one, or {INSTEAD}.",
            code="model_not_served",
        )


def embedder_of(session: Session, tenant_id: str, index_id: str) -> Embedder | None:
    """Return the embedder for queries of a tenant's index, or None if it is searched by words only.

    Raises NotFoundError, or ConflictError if the index is not completed or its model has changed.
    """
    parts = parts_of(session, INDEXES.get(session, tenant_id, index_id))
    model, embedding = parts.embedding_model, parts.signature.embedding
    if model is None or embedding is None:
        return None
    now = require_same(session, model, embedding)
    return Embedder(model=model, query_prefix=embedding.query_prefix, max_tokens=now.max_tokens)


def line_of(parts: IndexParts, query: str) -> bytes:
    """Return the line that embeds a question, without a newline."""
    body = {"model": parts.embedding_model, "input": [parts.query_prefix + query], "encoding_format": "base64"}
    return orjson.dumps({"custom_id": "query", "method": "POST", "url": EMBEDDING_ENDPOINT, "body": body})


def submit(
    session: Session,
    tenant: Tenant,
    parts: IndexParts,
    new: NewFile,
    settings: Settings,
    *,
    key_id: str,
    spend: Callable[[int], None],
) -> str:
    """Create the batch of a written line; return its id. Raises what creating a batch raises."""
    request = CreateBatch(
        input_file_id="",
        made_from=f"question of {parts.id}",
        endpoint=EMBEDDING_ENDPOINT,
        completion_window="1m",
        metadata={"index_id": parts.id, "purpose": "query"},
        output_expires_after_seconds=MIN_EXPIRY_SECONDS,
        priority=AskedPriority(tenant.best_priority),
        is_ours=True,
    )
    return made_inputs.submit(session, tenant, request, new, settings, key_id=key_id, spend=spend).batch.id


def answer(session: Session, tenant_id: str, batch_id: str) -> NDArray[np.float32] | None:
    """Return the vector that a batch has produced; None: not yet. Raises InputError if it will have none."""
    batch = lifecycle.get_batch(session, tenant_id, batch_id)
    content = read_finished_lines(session, batch, limit=1).content
    if content:
        return _vector(orjson.loads(content))
    if BatchState(batch.state) in TERMINAL_BATCH_STATES:
        problem = (batch.errors or [{}])[0].get("message", f"its batch {batch_id} is {batch.state}")
        raise _not_embedded(problem)
    return None


def _vector(line: dict[str, Any]) -> NDArray[np.float32]:
    body = (line.get("response") or {}).get("body") or {}
    error = line.get("error") or body.get("error")
    if error is not None:
        raise _not_embedded(str(error["message"]))
    return vector_of(body["data"][0]["embedding"])


def _not_embedded(why: str) -> InputError:
    return InputError(f"The question was not embedded: {why}. You may {INSTEAD}.", param="query", code="not_embedded")
