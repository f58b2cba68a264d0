"""`/v1/reviews/items`: bodies of a document's lists, with extracted, added and dropped items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from api.schemas.wire import WireModel
from features.documents.extraction.fields.paths import Place, spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.scoring.items import ItemChange, Items, at, lists_of
from features.documents.extraction.scoring.verdicts import Change


class Changed(WireModel):
    by: str
    """Id of a key."""
    at: int

    @classmethod
    def of(cls, change: ItemChange | None) -> Self | None:
        return None if change is None else cls(by=change.by, at=change.at)


class ListItem(WireModel):
    path: str
    """With its permanent number; the number of a dropped item is not reused."""
    value: Any
    """With corrections applied; for a dropped item as extracted or added."""
    added: Changed | None
    """None: it was extracted."""
    dropped: Changed | None


class DocumentList(WireModel):
    path: str
    value_schema: dict[str, Any]
    """The JSON schema of the list; its `items` is the schema of an item to add."""
    items: list[ListItem]
    next_path: str
    """The path of the next item to add."""

    @classmethod
    def of(cls, array: Place, schema: dict[str, Any], items: Items, fields: Mapping[str, Any]) -> Self:
        places = [(*array, number) for number in range(len(at(fields, array)))]
        stood = items.with_added(items.extracted)
        dropped = {each.place: each for each in items.changes if each.change is Change.DROP}
        return cls(
            path=spell(array),
            value_schema=schema,
            items=[
                ListItem(
                    path=spell(place),
                    value=at(stood if place in dropped else fields, place),
                    added=Changed.of(items.added.get(place)),
                    dropped=Changed.of(dropped.get(place)),
                )
                for place in places
            ],
            next_path=spell((*array, len(places))),
        )


class DocumentLists(WireModel):
    object: Literal["review.items"] = "review.items"
    extraction_id: str
    document_id: str
    document: str
    """Its name."""
    data: list[DocumentList]
    """Empty if the schema has no list."""

    @classmethod
    def of(
        cls,
        extraction_id: str,
        record: Mapping[str, Any],
        schema: FieldSchema,
        items: Items,
        corrected: Mapping[str, Any],
    ) -> Self:
        """Return the lists of a record; `corrected` are its fields with people's corrections."""
        fields = items.with_added(corrected)
        return cls(
            extraction_id=extraction_id,
            document_id=record["document_id"],
            document=record["document"],
            data=[
                DocumentList.of(place, schema.value_schema(path), items, fields)
                for place, path in lists_of(schema, items)
            ],
        )
