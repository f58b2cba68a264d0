"""Items that people add to lists of completed extractions' records, or drop from them.

Changes of one extraction are serialised, so each sees the earlier ones. `features.documents.extraction.scoring.items`
applies them to records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.fields.paths import Place, path_of, place_of, spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.items import ItemChange, Items, at, item_of, lists_of
from features.documents.extraction.scoring.verdicts import Change, Verdict
from features.documents.lifecycle import EXTRACTIONS
from features.documents.reviewing import reviews
from features.documents.tables import Extraction, ItemChangeRow, Review
from jobs.counted import counted
from jobs.errors import ConflictError, InputError
from jobs.ids import new_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeItem:
    """A change of an item; `claim` is the person's claim on its values, if any."""

    change: Change
    place: str
    """Of the item, spelled as a path; an added item has the next number of its list."""
    value: Any = None
    claim: str | None = None


def of_documents(session: Session, extraction_id: str, document_ids: Collection[str]) -> dict[str, list[ItemChange]]:
    """Return changes by document id, in the order in which they were made.

    Changes made at the same time are additions to one list, in the order of their numbers.
    """
    row = ItemChangeRow
    query = select(row).where(row.extraction_id == extraction_id, row.document_id.in_(document_ids))
    changes: dict[str, list[ItemChange]] = {}
    for each in session.scalars(query.order_by(row.changed_at, row.place[-1].as_integer())):
        change = ItemChange(
            place=tuple(each.place),
            change=Change(each.change),
            value=each.value,
            by=each.changed_by,
            at=int(each.changed_at.timestamp()),
        )
        changes.setdefault(each.document_id, []).append(change)
    return changes


def items_of(session: Session, extraction: Extraction, record: Mapping[str, Any]) -> Items:
    """Return the lists of a record. Raises ConflictError if its document failed."""
    if record["fields"] is None:
        raise ConflictError(
            f"{record['document'][:200]!r} failed, and has no lists: extract from it again.", code="no_results"
        )
    changes = of_documents(session, extraction.id, [record["document_id"]])
    return Items(record["fields"], changes.get(record["document_id"], []))


def change_item(
    session: Session, tenant_id: str, extraction_id: str, record: Mapping[str, Any], wish: ChangeItem, *, by: str
) -> None:
    """Add an item to a list or drop one; idempotent. Raises InputError, ConflictError, NotFoundError."""
    EXTRACTIONS.lock_own(session, tenant_id, extraction_id)
    extraction = reviews.completed(session, tenant_id, extraction_id)
    schema, items = reviews.schema_of(extraction), items_of(session, extraction, record)
    place = _place(schema, items, wish.place)
    if wish.change is Change.DROP:
        _drop(session, extraction, record["document_id"], items=items, place=place, claim=wish.claim, by=by)
    else:
        value = checked_item(schema, place, wish.value)
        if _is_new(items, place, value, max_items=schema.containers[path_of(place[:-1])].max_items):
            note(session, extraction, record["document_id"], [(place, Change.ADD, value)], by=by)
            _judge_empty(session, extraction.id, record["document_id"], place[:-1], is_right=False)


def note(
    session: Session,
    extraction: Extraction,
    document_id: str,
    changes: Sequence[tuple[Place, Change, Any]],
    *,
    by: str,
) -> datetime:
    """Write changes without checks; return their time."""
    now: datetime | None = session.scalar(select(func.clock_timestamp()))
    assert now is not None, "the database has a clock"
    of_all = {"extraction_id": extraction.id, "tenant_id": extraction.tenant_id, "document_id": document_id}
    rows = [
        of_all
        | {
            "id": new_id("change"),
            "place": list(place),
            "change": change.value,
            "value": value,
            "changed_by": by,
            "changed_at": now,
        }
        for place, change, value in changes
    ]
    session.execute(insert(ItemChangeRow), rows)
    return now


def checked_item(schema: FieldSchema, place: Place, value: Any) -> Any:
    """Return an item in the form of a record. Raises InputError with the allowed form."""
    try:
        return item_of(schema, path_of(place[:-1]), value, name=spell(place))
    except ExtractionError as error:
        raise InputError(str(error), param="value", code="invalid_value") from None


def _place(schema: FieldSchema, items: Items, spelled: str) -> Place:
    """Return the place of an item in one of the lists. Raises InputError."""
    lists = [place for place, _ in lists_of(schema, items)]
    try:
        place = place_of(spelled)
    except ValueError:
        place = ()
    if not place or not isinstance(place[-1], int) or place[:-1] not in lists:
        names = ", ".join(f"{spell(one)}[…]" for one in lists[:10]) or "none"
        raise InputError(
            f"{spelled[:100]!r} is no item of a list of this document; its lists are {names}. Values inside an added "
            "or dropped item cannot be changed.",
            param="path",
            code="invalid_value",
        )
    return place


def _num_items(items: Items, array: Place) -> int:
    """Return how many numbers of a list are taken."""
    return len(at(items.extracted, array)) + sum(1 for place in items.added if place[:-1] == array)


def _num_left(items: Items, array: Place) -> int:
    """Return how many items of a list remain."""
    return _num_items(items, array) - sum(1 for place in items.dropped if place[:-1] == array)


def _is_new(items: Items, place: Place, value: Any, *, max_items: int | None) -> bool:
    """Return whether an item has to be added; False if it was already. Raises InputError, ConflictError."""
    following, array = _num_items(items, place[:-1]), place[:-1]
    following_name = spell((*array, following))
    existing = items.added.get(place)
    if existing is not None and existing.value == value and place not in items.dropped:
        return False
    if int(place[-1]) < following:
        raise ConflictError(
            f"{spell(place)} is there already{'' if existing is None else f', added by {existing.by}'}. Read the list "
            f"again, and add what it still lacks as {following_name!r}.",
            param="path",
            code="item_changed",
        )
    if int(place[-1]) > following:
        raise InputError(
            f"{spell(place)!r} cannot be added: the next item is {following_name!r}.",
            param="path",
            code="invalid_value",
        )
    num_left = _num_left(items, array)
    if max_items is not None and num_left >= max_items:
        raise InputError(
            f"{spell(array)} has {counted(num_left, 'item')}, and the schema allows {max_items:,}. "
            "Drop one that is wrong.",
            param="path",
            code="invalid_value",
        )
    return True


def _judge_empty(session: Session, extraction_id: str, document_id: str, array: Place, *, is_right: bool) -> None:
    """Record for a list that was accepted as empty whether that was right."""
    for review in _reviews_at(session, extraction_id, document_id, array):
        if tuple(review.place) == array and review.verdict == Verdict.ACCEPT:
            review.is_right = is_right
    session.flush()


def _drop(
    session: Session,
    extraction: Extraction,
    document_id: str,
    *,
    items: Items,
    place: Place,
    claim: str | None,
    by: str,
) -> None:
    """Drop an item, and decide the open reviews of its values. Raises InputError, ConflictError."""
    if place in items.dropped:
        return
    if int(place[-1]) >= (num_items := _num_items(items, place[:-1])):
        raise InputError(
            f"There is no {spell(place)!r}: {spell(place[:-1])} has {counted(num_items, 'item')}, counted from 0.",
            param="path",
            code="invalid_value",
        )
    inside = _reviews_at(session, extraction.id, document_id, place)
    for review in inside:
        reviews.require_unclaimed(session, review, claim)
    now = note(session, extraction, document_id, [(place, Change.DROP, None)], by=by)
    for review in inside:
        is_empty = review.evidence["value"] in (None, [])
        review.is_right = is_empty
        if review.verdict is None:
            review.verdict = (Verdict.ACCEPT if is_empty else Verdict.REJECT).value
            review.decided_by, review.decided_at = by, now
    if _num_left(items, place[:-1]) == 1:  # the dropped item: `items` precede the change
        _judge_empty(session, extraction.id, document_id, place[:-1], is_right=True)
    session.flush()


def _reviews_at(session: Session, extraction_id: str, document_id: str, place: Place) -> list[Review]:
    """Return the reviews of a place and of places inside it, locked."""
    of_document = (Review.extraction_id == extraction_id) & (Review.document_id == document_id)
    named = Review.path.startswith(spell(place), autoescape=True)
    reviews_below = session.scalars(select(Review).where(of_document, named).order_by(Review.id).with_for_update())
    return [review for review in reviews_below if tuple(review.place[: len(place)]) == place]


def add_all(session: Session, extraction: Extraction, review: Review, values: Any, *, by: str) -> list[Any]:
    """Add all the items of a list in which nothing was found; no error if the same items were added before.

    Return them. Raises InputError, or ConflictError if the list has other items.
    """
    EXTRACTIONS.lock_own(session, extraction.tenant_id, extraction.id)
    schema, array = reviews.schema_of(extraction), tuple(review.place)
    if not isinstance(values, list) or not values:
        raise InputError(
            f"{review.path!r} is a list: give all its items as a list, or accept it if the document has none.",
            param="value",
            code="invalid_value",
        )
    wanted_items = [checked_item(schema, (*array, index), value) for index, value in enumerate(values)]
    remaining, num_added = added_to(session, review)
    if remaining == wanted_items:
        return wanted_items
    if remaining:
        raise ConflictError(
            f"{review.path!r} has {counted(len(remaining), 'item')} by now, added meanwhile, and these are "
            "others. Read the list again.",
            param="value",
            code="item_changed",
        )
    changes = [((*array, num_added + index), Change.ADD, value) for index, value in enumerate(wanted_items)]
    max_items = schema.containers[path_of(array)].max_items
    if max_items is not None and len(wanted_items) > max_items:
        raise InputError(
            f"{review.path!r} cannot have {counted(len(wanted_items), 'item')}: the schema allows {max_items:,}.",
            param="value",
            code="invalid_value",
        )
    note(session, extraction, review.document_id, changes, by=by)
    return wanted_items


def added_to(session: Session, review: Review) -> tuple[list[Any], int]:
    """Return the remaining items added to a list in which nothing was found, and how many were ever added."""
    changes = of_documents(session, review.extraction_id, [review.document_id]).get(review.document_id, [])
    array, items = tuple(review.place), Items({}, changes)
    added = {place: each for place, each in items.added.items() if place[:-1] == array}
    return [each.value for place, each in added.items() if place not in items.dropped], len(added)


def tally(session: Session, extraction: Extraction) -> dict[Change, int]:
    """Return how many items were added and dropped."""
    row = ItemChangeRow
    query = select(row.change, func.count()).where(row.extraction_id == extraction.id).group_by(row.change)
    counts = {Change(change): num for change, num in session.execute(query)}
    return {change: counts.get(change, 0) for change in Change}
