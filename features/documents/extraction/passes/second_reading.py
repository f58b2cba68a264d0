"""The second reading: lists every value of some kinds with its quote, without slots, so its errors differ.

Its prompt starts like the first reading's, so the document is in the prefix cache. Agreement is decided by normalised
value and overlap of spans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from features.documents.extraction.fields.groups import Group
from features.documents.extraction.fields.leaf import Kind, Leaf
from features.documents.extraction.fields.shapes import MAX_QUOTE_CHARACTERS
from features.documents.extraction.fields.values import is_same, normal_text
from features.documents.extraction.grounding.align import Sought, ground
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.passes.examples import Example
from features.documents.extraction.passes.findings import Agreement, Finding
from features.documents.extraction.passes.hunter import shared_part
from features.documents.extraction.passes.partial_json import Node, parse
from features.documents.extraction.passes.prompts import Request, Shape, request

_KIND_WORDS = {
    Kind.TEXT: "text (names, numbers of documents, addresses, terms)",
    Kind.NUMBER: "number (counts, rates, sizes)",
    Kind.MONEY: "money (amounts)",
    Kind.DATE: "date (days, as YYYY-MM-DD)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondValue:
    """A value found by the second reading."""

    kind: Kind
    value: str
    spans: tuple[Span, ...] = ()


def kinds_read(group: Group) -> list[Kind]:
    """Return the kinds of a group's values that a second reading can find; none if all are concluded."""
    return [kind for kind in _KIND_WORDS if any(leaf.kind is kind and leaf.ground for leaf in group.leaves)]


def second_reading_request(
    document_text: str,
    group: Group,
    *,
    quotes: bool = True,
    examples: Sequence[Example] = (),
    shape: Shape = Shape.FIELDS_FIRST,
) -> Request:
    """Return the second reading's request; arguments as for `hunter_request`."""
    kinds = kinds_read(group)
    words = "; ".join(_KIND_WORDS[kind] for kind in kinds)
    shared = shared_part(group, examples, quotes=quotes) if shape is Shape.FIELDS_FIRST else ""
    task = (
        f"Leave the fields aside. List, from the document's beginning to its end, every value of these kinds: {words}."
        " For each give its kind, the value, and a quote: the words of the document that hold it, letter by letter."
    )
    return request(document_text, shared=shared, task=task, shape=shape, name="values", schema=_schema(kinds))


def _schema(kinds: Sequence[Kind]) -> dict[str, Any]:
    properties = {
        "kind": {"enum": [kind.value for kind in kinds]},
        "value": {"type": "string", "maxLength": MAX_QUOTE_CHARACTERS},
        "quote": {"type": "string", "maxLength": MAX_QUOTE_CHARACTERS},
    }
    item = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    values = {"type": "array", "items": item}
    return {"type": "object", "properties": {"values": values}, "required": ["values"], "additionalProperties": False}


def read_second(text: str, document_text: str) -> list[SecondValue]:
    """Return the values of a second reading, possibly truncated, with their places in the prompt's text."""
    root = parse(text)
    values = root.value.get("values") if root is not None else None
    items = values.value if values is not None and isinstance(values.value, list) else []
    items_read = [item for node in items if (item := _item(node)) is not None]
    groundings = ground(
        [Sought(value=value, kind=kind, quote=quote) for kind, value, quote in items_read], document_text
    )
    return [
        SecondValue(kind=kind, value=value, spans=grounding.spans)
        for (kind, value, _), grounding in zip(items_read, groundings, strict=True)
    ]


def _item(node: Node) -> tuple[Kind, str, str | None] | None:
    members: Mapping[str, Node] = node.value if isinstance(node.value, dict) else {}
    kind, value, quote = (members[name].value if name in members else None for name in ("kind", "value", "quote"))
    if kind not in set(Kind) or not isinstance(value, str) or not value.strip():
        return None
    return Kind(kind), value, quote if isinstance(quote, str) else None


def with_agreements(findings: Sequence[Finding], second: Sequence[SecondValue], group: Group) -> list[Finding]:
    """Return findings with their agreement with a second reading; the spans of both must refer to the same text.

    For null and for concluded values there is no comparison.
    """
    leaves = {leaf.path: leaf for leaf in group.leaves}
    return [replace(each, agreement=_agreement(each, leaves[each.path], second)) for each in findings]


def _agreement(finding: Finding, leaf: Leaf, second: Sequence[SecondValue]) -> Agreement:
    if finding.value is None or not leaf.ground:
        return Agreement.SILENT
    same = [each for each in second if _is_same(finding.value, each.value, leaf.kind)]
    if any(_meet(finding, each) for each in same) or (same and not finding.spans):
        return Agreement.AGREES
    if same:
        return Agreement.ELSEWHERE
    rivals = [each for each in second if each.kind is leaf.kind and _meet(finding, each)]
    return Agreement.DIFFERS if rivals else Agreement.SILENT


def _is_same(value: Any, other_value: str, kind: Kind) -> bool:
    if kind is Kind.TEXT:  # a name may include its title, an address its country
        own, other = normal_text(str(value)), normal_text(other_value)
        return bool(own and other) and (f" {own} " in f" {other} " or f" {other} " in f" {own} ")
    return is_same(value, other_value, kind)


def _meet(finding: Finding, second: SecondValue) -> bool:
    return any(one.overlaps(other) for one in finding.spans for other in second.spans)
