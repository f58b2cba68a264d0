"""The gold file: values that people know to be right, one document per line.

Each line is `{"document": name, "fields": {…}, "spans": {"lines[0].amount": [[start, end], …]}}`. If names are
ambiguous, add the `document_id` of the record, or use it as the name. `spans` are offsets into the document's text and
may be left out. If only some values were checked, `"known": ["total"]` names them, and only they count.
`"absent": {"lines": [{…}]}` lists items that the document does not have: a record with such an item is wrong there.
`"text"` is the document's text, for an example that no collection has.
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

_NAMES = ("document", "document_id", "fields", "spans", "known", "absent", "text")

Spend = Callable[[int], None]
"""Called with an amount of work before it is done; raises if that is too much."""


def unbounded(_num: int) -> None:
    """A `Spend` without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldDocument:
    """The right values of one document; `spans` by the spelled place of the value."""

    document: str
    fields: Mapping[str, Any]
    spans: Mapping[str, tuple[Span, ...]]
    known: frozenset[str] | None = None
    """The spelled places of values and whole lists that count; None: all do."""
    document_id: str | None = None
    absent: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Items that the document does not have, by the spelled place of their list."""
    text: str | None = None

    @property
    def key(self) -> str:
        """Return the key that is unique in the file: the id, else the name."""
        return self.document if self.document_id is None else self.document_id

    def tells_of(self, place: Place | None) -> bool:
        """Tell whether a place counts, itself or as part of a list; None stands for a place in an absent item."""
        if place is None or self.known is None:
            return True
        return any(spell(place[:end]) in self.known for end in range(1, len(place) + 1))


def read_gold(lines: Iterable[str], schema: FieldSchema, *, spend: Spend = unbounded) -> dict[str, GoldDocument]:
    """Return gold by key; `spend` receives the numbers of values. Raises ExtractionError naming the faulty line."""
    items = [_item(leaf.path) for leaf in schema.leaves]
    gold_by_key: dict[str, GoldDocument] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            entry = _object(line, number)
            for path in items:
                for _ in values_at(entry["fields"], path):
                    spend(1)
            gold = _document(entry, number, schema)
            if gold.key in gold_by_key:
                raise ExtractionError(f"line {number}: {gold.key!r} occurs twice. Keep one of them.")
            gold_by_key[gold.key] = gold
    return gold_by_key


def read_gold_file(content: bytes, schema: FieldSchema, *, spend: Spend = unbounded) -> dict[str, GoldDocument]:
    """Return the gold of a stored file: `read_gold`. Raises ExtractionError, also if it is not UTF-8."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ExtractionError(f"it is not UTF-8 ({error.reason} at byte {error.start}).") from None
    return read_gold(text.split("\n"), schema, spend=spend)


def _item(path: Path) -> Path:
    """Return the path of the innermost items that contain a leaf; each item has a value for it, null if left out."""
    return path[: max((end for end, part in enumerate(path, start=1) if part == ITEM), default=0)]


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ExtractionError(f"line {number} is not JSON: {error}.") from None
    except RecursionError:
        raise ExtractionError(f"line {number} is nested too deeply.") from None
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("document"), str)
        or not isinstance(entry.get("document_id", ""), str)
        or not isinstance(entry.get("fields"), dict)
        or not isinstance(entry.get("text", ""), str)
    ):
        raise ExtractionError(
            f'line {number} must be {{"document": name, "fields": {{…}}}}; "document_id", "spans", "known", "absent" '
            'and "text" are optional.'
        )
    if unknown := sorted(set(entry) - set(_NAMES)):
        raise ExtractionError(f"line {number} has {unknown[0]!r}; a line of gold has {', '.join(_NAMES)}.")
    _require_kept(entry, number)
    return entry


def _require_kept(entry: Mapping[str, Any], number: int) -> None:
    """Raise for values that would be lost or changed when stored, and for names that no database accepts."""
    try:
        why = None if orjson.loads(orjson.dumps(entry)) == entry else "Number is not finite"
    except TypeError as error:
        why = str(error)
    if why is not None:
        raise ExtractionError(
            f"line {number} cannot be stored: {why}. Leave out numbers that are not finite, whole numbers of more than "
            "64 bits, unpaired surrogates, and anything nested over 250 levels deep."
        )
    for name in (entry["document"], entry.get("document_id", "")):
        if "\0" in name:
            raise ExtractionError(f"line {number}: the name {name[:100]!r} contains a NUL character.")


def _document(entry: Mapping[str, Any], number: int, schema: FieldSchema) -> GoldDocument:
    places = {spell(place) for leaf in schema.leaves for place, _ in values_at(entry["fields"], leaf.path)}
    lists = {spell(place) for array in schema.arrays() for place, _ in values_at(entry["fields"], array)}
    _check_names(entry["fields"], schema, number)
    spans = entry.get("spans", {})
    if not isinstance(spans, dict) or not all(_is_spans(value) for value in spans.values()):
        raise ExtractionError(
            f'line {number}: "spans" must be like {{"total": [[start, end]]}}, offsets into the text.'
        )
    if strangers := sorted(set(spans) - places):
        raise ExtractionError(f'line {number}: "spans" has {strangers[0]!r}, which has no value in "fields".')
    known = entry.get("known")
    if known is not None and not (isinstance(known, list) and all(isinstance(place, str) for place in known)):
        raise ExtractionError(f'line {number}: "known" must be like ["total", "lines[0].amount"].')
    if strangers := sorted(set(known or ()) - places - lists):
        raise ExtractionError(f'line {number}: "known" has {strangers[0]!r}, which has no value in "fields".')
    absent = entry.get("absent", {})
    _check_absent(absent, lists, schema, number)
    spans_by_place = {place: tuple(Span(*span) for span in value) for place, value in spans.items()}
    return GoldDocument(
        document=entry["document"],
        fields=entry["fields"],
        spans=spans_by_place,
        known=None if known is None else frozenset(known),
        document_id=entry.get("document_id"),
        absent=absent,
        text=entry.get("text"),
    )


def _check_absent(absent: Any, lists: Collection[str], schema: FieldSchema, number: int) -> None:
    if not isinstance(absent, dict) or not all(isinstance(items, list) for items in absent.values()):
        raise ExtractionError(f'line {number}: "absent" must be like {{"lines": [{{"amount": 60.0}}]}}.')
    if strangers := sorted(absent.keys() - lists):
        raise ExtractionError(f'line {number}: "absent" has {strangers[0]!r}, which is no list in "fields".')
    for place, items in absent.items():
        _check_names(items, schema, number, path=path_of(place_of(place)))


def _check_names(fields: Any, schema: FieldSchema, number: int, *, path: Path = ()) -> None:
    """Raise for fields that are not in the schema: they would never be compared."""
    paths = {leaf.path[:end] for leaf in schema.leaves for end in range(1, len(leaf.path) + 1)}
    waiting: list[tuple[Path, Any]] = [(path, fields)]
    while waiting:
        path, node = waiting.pop()
        inner = (
            node.items() if isinstance(node, dict) else [("*", item) for item in node] if isinstance(node, list) else ()
        )
        for name, value in inner:
            if (*path, name) not in paths:
                raise ExtractionError(f"line {number}: {spell((*path, name))!r} is no field of the schema.")
            waiting.append(((*path, name), value))


def _is_spans(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span) and 0 <= span[0] < span[1]
        for span in value
    )
