"""`/v1/reviews/items`: the lists of a document, and adding items to them or dropping items."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from anyio.to_thread import run_sync
from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy.orm import Session

from api.auth import KeyIdDep, TenantDep
from api.fields import ObjectId, Storable, StrictModel
from api.openapi import failures
from api.services import Services, ServicesDep
from api.spending import ITEM_CHANGE_TURN, ONE_LISTING
from features.documents import record_ranges, records
from features.documents.extraction.scoring.verdicts import Change
from features.documents.http.values import Value
from features.documents.record_ranges import ByteRange, range_of
from features.documents.records import RecordsFile
from features.documents.reviewing import items, reviewed, reviews
from features.documents.reviewing.items import ChangeItem
from features.documents.schemas.items import DocumentLists
from features.documents.tables import Extraction
from jobs.database import transaction
from jobs.errors import InputError

router = APIRouter(prefix="/v1/reviews/items", tags=["extractions"], responses=failures(401, 403, 404, 409, 429, 503))

Found = TypeVar("Found")


class ItemsQuery(StrictModel):
    extraction_id: ObjectId
    document_id: ObjectId


class ItemBody(StrictModel):
    extraction_id: ObjectId
    document_id: ObjectId
    change: Change
    path: Annotated[Storable, Field(min_length=1, max_length=1000)]
    """The item, such as `lines[2]`. An added item has the next number of its list."""
    value: Value = None
    """Of an added item, as the `items` of its list's schema require; missing fields become null."""
    claim: ObjectId | None = None
    """With `drop`: the claim on the item's values, if there is one."""


@router.get("", operation_id="listItems", responses=failures(410), dependencies=[ONE_LISTING])
async def list_items(
    *, tenant: TenantDep, services: ServicesDep, query: Annotated[ItemsQuery, Query()]
) -> DocumentLists:
    """List the lists of a document of a completed extraction, each item with its changes.

    Items keep the numbers listed here, whatever is dropped.
    """
    record = await _record(services, tenant.id, query.extraction_id, query.document_id)
    return await _document_lists(services, tenant.id, query.extraction_id, record)


@router.post("", operation_id="changeItem", responses=failures(408, 410, 413), dependencies=[ITEM_CHANGE_TURN])
async def change(body: ItemBody, *, tenant: TenantDep, services: ServicesDep, key_id: KeyIdDep) -> DocumentLists:
    """Add an item that was not extracted, or drop one that the document does not have. Repeating it has no effect.

    Open reviews of a dropped item are decided with it.
    """
    _check_value(body)
    record = await _record(services, tenant.id, body.extraction_id, body.document_id)
    wish = ChangeItem(change=body.change, place=body.path, value=body.value, claim=body.claim)
    change_item = partial(items.change_item, record=record, wish=wish, by=key_id)
    async with services.session_slots:
        await run_sync(_in_transaction, services, lambda session: change_item(session, tenant.id, body.extraction_id))
    return await _document_lists(services, tenant.id, body.extraction_id, record)


def _check_value(body: ItemBody) -> None:
    if (body.change is Change.ADD) == (body.value is None):
        rule = "is what the item has: give it" if body.value is None else "is for an added item: leave it out"
        raise InputError(f"'value' {rule} with {body.change.value!r}.", param="value", code="invalid_value")


async def _record(services: Services, tenant_id: str, extraction_id: str, document_id: str) -> dict[str, Any]:
    def look(session: Session) -> tuple[RecordsFile, ByteRange | None]:
        extraction = reviews.completed(session, tenant_id, extraction_id)
        file = records.records_file(session, extraction)
        return file, record_ranges.find(session, extraction_id, document_id)

    async with services.session_slots:
        file, where = await run_sync(_in_transaction, services, look)
    if where is None:
        where = range_of(await _noted_late(services, tenant_id, extraction_id, file), document_id)
    return await _from_store(
        services, tenant_id, lambda: record_ranges.read_record(services.store.storage, file, where)
    )


async def _noted_late(
    services: Services, tenant_id: str, extraction_id: str, file: RecordsFile
) -> dict[str, ByteRange]:
    """Return the ranges of a file's records, and store them if they were not stored.

    A file of few documents may leave nothing to store.
    """
    ranges = await _from_store(services, tenant_id, lambda: record_ranges.read_all(services.store.storage, file))
    async with services.session_slots:
        await run_sync(
            _in_transaction,
            services,
            lambda session: record_ranges.note_late(session, tenant_id, extraction_id, ranges),
        )
    return ranges


async def _from_store(services: Services, tenant_id: str, read: Callable[[], Found]) -> Found:
    async with services.making_turn(tenant_id):
        return await run_sync(read, limiter=services.store.making_threads)


async def _document_lists(
    services: Services, tenant_id: str, extraction_id: str, record: dict[str, Any]
) -> DocumentLists:
    def look(session: Session) -> DocumentLists:
        extraction: Extraction = reviews.completed(session, tenant_id, extraction_id)
        lists = items.items_of(session, extraction, record)
        fields = reviewed.corrected_fields(session, extraction, record)
        return DocumentLists.of(extraction.id, record, reviews.schema_of(extraction), lists, fields)

    async with services.session_slots:
        return await run_sync(_in_transaction, services, look)


def _in_transaction(services: Services, work: Callable[[Session], Found]) -> Found:
    with transaction(services.sessions) as session:
        return work(session)
