"""Vectors of questions: made by a batch, awaited for a while, and cached.

Waiting holds no thread and no connection to Postgres between polls.
"""

from __future__ import annotations

from functools import partial

import anyio
import numpy as np
from anyio.to_thread import run_sync
from numpy.typing import NDArray

from api.services import Services
from api.spending import Spending
from features.retrieval import questions
from features.retrieval.http.service import search_of
from features.retrieval.parts import IndexParts
from jobs import files
from jobs.batches import lifecycle, made_inputs
from jobs.database import transaction
from jobs.errors import ConflictError, InputError, LateError
from jobs.files import NewFile
from jobs.tables import Tenant

Vector = NDArray[np.float32]

_LOOK_SECONDS = 0.1
_FILENAME = "query.jsonl"


class Asker:
    """Embeds questions of one tenant."""

    def __init__(self, services: Services, tenant: Tenant, *, key_id: str, spending: Spending) -> None:
        self._services = services
        self._tenant = tenant
        self._key_id = key_id
        self._spending = spending

    async def vector(self, parts: IndexParts, query: str, *, timeout_seconds: float) -> tuple[Vector, str | None]:
        """Return the vector of a question, and the id of the batch that made it if one was needed.

        Raises LateError if it is not ready in time, UnservedError if no worker makes it, and what creating a batch
        raises.
        """
        async with self._services.session_slots:
            await run_sync(self._require_served, parts)
        cached = search_of(self._services).known_vectors.find(parts, query)
        if cached is not None:
            return cached, None
        batch_id = await self._submit(parts, query)
        with anyio.move_on_after(timeout_seconds):
            vector = await self._wait(batch_id)
            search_of(self._services).known_vectors.keep(parts, query, vector)
            return vector, batch_id
        async with self._services.session_slots:
            await run_sync(self._cancel, batch_id)
        raise LateError(
            f"The question was not embedded within {timeout_seconds:g} s, and its batch {batch_id!r} is "
            f"cancelled. Give a longer timeout_seconds, or {questions.INSTEAD}.",
            code="query_not_embedded_in_time",
        )

    async def _submit(self, parts: IndexParts, query: str) -> str:
        key = files.new_object_key(self._tenant.id)
        new = await run_sync(
            partial(
                made_inputs.write_input,
                self._services.store.storage,
                key,
                [questions.line_of(parts, query)],
                filename=_FILENAME,
                settings=self._services.settings,
            ),
            limiter=self._services.store.upload_threads,
        )
        try:
            async with self._services.session_slots:
                return await run_sync(self._create, parts, new)
        except InputError:
            await self._services.store.delete(key)
            raise

    async def _wait(self, batch_id: str) -> Vector:
        while True:
            async with self._services.session_slots:
                vector = await run_sync(self._answer, batch_id)
            if vector is not None:
                return vector
            await anyio.sleep(_LOOK_SECONDS)

    def _require_served(self, parts: IndexParts) -> None:
        with transaction(self._services.sessions) as session:
            questions.require_served(session, parts)

    def _create(self, parts: IndexParts, new: NewFile) -> str:
        with transaction(self._services.sessions) as session:
            return questions.submit(
                session,
                self._tenant,
                parts,
                new,
                self._services.settings,
                key_id=self._key_id,
                spend=self._spending.spend,
            )

    def _answer(self, batch_id: str) -> Vector | None:
        with transaction(self._services.sessions) as session:
            return questions.answer(session, self._tenant.id, batch_id)

    def _cancel(self, batch_id: str) -> None:
        with transaction(self._services.sessions) as session:
            try:
                lifecycle.cancel_batch(session, self._tenant.id, batch_id)
            except ConflictError:  # it has just ended, too late for the caller
                return
