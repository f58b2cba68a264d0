"""The gold file: what people know to be right, one document a line.

Each line is `{"document": name, "fields": {…}, "spans": {"lines[0].amount": [[start, end], …]}}`. Where names are not
enough, the `document_id` of its record stands beside the name, or in its place. `spans` are offsets into the document's
text and may be left out. Where only some of the values were looked at, `"known": ["total"]` names them, and no other
counts; `"absent": {"lines": [{…}]}` are items that the document does not have: a record with such a one is wrong there.
Knows no record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from features.documents.extraction.errors import ExtractionError
from features.documents.extraction.fields.paths import ITEM, Path, Place, path_of, place_of, spell
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.passes.examples import values_at

_NAMES = ("document", "document_id", "fields", "spans", "known", "absent")

Spend = Callable[[int], None]
"""Is told of work before it is done, and raises where that is too much."""


def unbounded(_num: int) -> None:
    """Spend as much as there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldDocument:
    """What is right of one document; `spans` by the spelled place of the value."""

    document: str
    fields: Mapping[str, Any]
    spans: Mapping[str, tuple[Span, ...]]
    known: frozenset[str] | None = None
    """The spelled places of the values that count, and of lists that do with all in them; None: all do."""
    document_id: str | None = None
    absent: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """By the spelled place of their list: items that the document does not have."""

    @property
    def key(self) -> str:
        """Return what no other line of its file has: the id, else the name."""
        return self.document if self.document_id is None else self.document_id

    def tells_of(self, place: Place | None) -> bool:
        """Tell whether what stands at a place counts, by itself or in a list; None: in an item known to be absent."""
        if place is None or self.known is None:
            return True
        return any(spell(place[:end]) in self.known for end in range(1, len(place) + 1))


def read_gold(lines: Iterable[str], schema: FieldSchema, *, spend: Spend = unbounded) -> dict[str, GoldDocument]:
    """Return gold by its keys; `spend` is told of its values. Raises ExtractionError with the line of what is wrong."""
    items = [_item(leaf.path) for leaf in schema.leaves]
    found: dict[str, GoldDocument] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            given = _object(line, number)
            for path in items:
                for _ in values_at(given["fields"], path):
                    spend(1)
            gold = _document(given, number, schema)
            if gold.key in found:
                raise ExtractionError(f"line {number}: {gold.key!r} is there twice. Keep one of them.")
            found[gold.key] = gold
    return found


def read_gold_file(content: bytes, schema: FieldSchema, *, spend: Spend = unbounded) -> dict[str, GoldDocument]:
    """Return the gold of a file as it is stored: `read_gold`. Raises ExtractionError, also where it is no UTF-8."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ExtractionError(f"it is no UTF-8 ({error.reason} at byte {error.start}).") from None
    return read_gold(text.split("\n"), schema, spend=spend)


def _item(path: Path) -> Path:
    """Return the path of the innermost items that a leaf is in: it has a value in each, null where it is left out."""
    return path[: max((end for end, part in enumerate(path, start=1) if part == ITEM), default=0)]


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        given = json.loads(line)
    except ValueError as error:
        raise ExtractionError(f"line {number} is no JSON: {error}.") from None
    except RecursionError:
        raise ExtractionError(f"line {number} is nested too deep to be gold.") from None
    if (
        not isinstance(given, dict)
        or not isinstance(given.get("document"), str)
        or not isinstance(given.get("document_id", ""), str)
        or not isinstance(given.get("fields"), dict)
    ):
        raise ExtractionError(
            f'line {number} must be {{"document": name, "fields": {{…}}}}; "document_id", "spans", "known" and '
            '"absent" may stand beside them.'
        )
    if unknown := sorted(set(given) - set(_NAMES)):
        raise ExtractionError(f"line {number} has {unknown[0]!r}; a line of gold has {', '.join(_NAMES)}.")
    _require_kept(given, number)
    return given


def _require_kept(given: Mapping[str, Any], number: int) -> None:
    """Refuse what would be lost or changed where gold is kept, and a name that no database can be asked for."""
    try:
        why = None if orjson.loads(orjson.dumps(given)) == given else "Number is not finite"
    except TypeError as error:
        why = str(error)
    if why is not None:
        raise ExtractionError(
            f"line {number} cannot be kept: {why}. Leave out numbers that are not finite, whole numbers of more than "
            "64 bits, unpaired surrogates, and what is nested over 250 levels deep."
        )
    for name in (given["document"], given.get("document_id", "")):
        if "\0" in name:
            raise ExtractionError(f"line {number}: the name {name[:100]!r} has a NUL, as no document's has.")


def _document(given: Mapping[str, Any], number: int, schema: FieldSchema) -> GoldDocument:
    places = {spell(place) for leaf in schema.leaves for place, _ in values_at(given["fields"], leaf.path)}
    lists = {spell(place) for array in schema.arrays() for place, _ in values_at(given["fields"], array)}
    _check_names(given["fields"], schema, number)
    spans = given.get("spans", {})
    if not isinstance(spans, dict) or not all(_is_spans(value) for value in spans.values()):
        raise ExtractionError(
            f'line {number}: "spans" must be like {{"total": [[start, end]]}}, offsets into the text.'
        )
    if strangers := sorted(set(spans) - places):
        raise ExtractionError(f'line {number}: "spans" has {strangers[0]!r}, of which "fields" has no value.')
    known = given.get("known")
    if known is not None and not (isinstance(known, list) and all(isinstance(place, str) for place in known)):
        raise ExtractionError(f'line {number}: "known" must be like ["total", "lines[0].amount"].')
    if strangers := sorted(set(known or ()) - places - lists):
        raise ExtractionError(f'line {number}: "known" has {strangers[0]!r}, of which "fields" has no value.')
    absent = given.get("absent", {})
    _check_absent(absent, lists, schema, number)
    found = {place: tuple(Span(*span) for span in value) for place, value in spans.items()}
    return GoldDocument(
        document=given["document"],
        fields=given["fields"],
        spans=found,
        known=None if known is None else frozenset(known),
        document_id=given.get("document_id"),
        absent=absent,
    )


def _check_absent(absent: Any, lists: Collection[str], schema: FieldSchema, number: int) -> None:
    if not isinstance(absent, dict) or not all(isinstance(items, list) for items in absent.values()):
        raise ExtractionError(f'line {number}: "absent" must be like {{"lines": [{{"amount": 60.0}}]}}.')
    if strangers := sorted(absent.keys() - lists):
        raise ExtractionError(f'line {number}: "absent" has {strangers[0]!r}, of which "fields" has no list.')
    for place, items in absent.items():
        _check_names(items, schema, number, path=path_of(place_of(place)))


def _check_names(fields: Any, schema: FieldSchema, number: int, *, path: Path = ()) -> None:
    """Refuse fields that the schema does not ask for: they would never be compared."""
    known = {leaf.path[:end] for leaf in schema.leaves for end in range(1, len(leaf.path) + 1)}
    waiting: list[tuple[Path, Any]] = [(path, fields)]
    while waiting:
        path, node = waiting.pop()
        inner = (
            node.items() if isinstance(node, dict) else [("*", item) for item in node] if isinstance(node, list) else ()
        )
        for name, value in inner:
            if (*path, name) not in known:
                raise ExtractionError(f"line {number}: {spell((*path, name))!r} is no field of the schema.")
            waiting.append(((*path, name), value))


def _is_spans(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span) and 0 <= span[0] < span[1]
        for span in value
    )
