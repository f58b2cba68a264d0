"""Worked examples: their form in a prompt, and detection of answers copied from them.

Small models copy what they are shown. A value of an example that does not occur in the document is treated like any
other ungrounded value, with its own reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from features.documents.extraction.fields.groups import Group
from features.documents.extraction.fields.leaf import Leaf
from features.documents.extraction.fields.paths import ITEM, Path, Place, build
from features.documents.extraction.fields.values import is_same_for
from features.documents.extraction.grounding.align import Sought, ground
from features.documents.extraction.grounding.spans import Span
from features.documents.extraction.passes.enclosing import enclosed
from features.documents.extraction.passes.findings import Finding

MAX_EXAMPLES = 3
FROM_AN_EXAMPLE = "it is the value of an example and does not stand in the document"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A document, and its fields as they should be answered."""

    document_text: str
    fields: Mapping[str, Any]


def examples_in_words(examples: Sequence[Example], group: Group, *, quotes: bool) -> str:
    """Return examples with their answers, as a prompt shows them."""
    return "\n\n".join(
        f"Example, from another document:\n{enclosed(example.document_text, 'example')}\nAnswer: "
        + json.dumps(_answer(example, group, quotes=quotes), ensure_ascii=False, separators=(",", ":"))
        for example in examples[:MAX_EXAMPLES]
    )


def with_example_reasons(findings: Sequence[Finding], examples: Sequence[Example], group: Group) -> list[Finding]:
    """Return findings, with a reason added to values copied from an example."""
    values_shown = {
        leaf.path: [value for example in examples for _, value in values_at(example.fields, leaf.path)]
        for leaf in group.leaves
        if leaf.ground
    }
    leaves = {leaf.path: leaf for leaf in group.leaves}
    return [
        replace(each, reasons=(*each.reasons, FROM_AN_EXAMPLE))
        if _is_of_example(each, leaves[each.path], values_shown.get(each.path, []))
        else each
        for each in findings
    ]


def values_at(fields: Any, path: Path, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield each value of fields at a path, with its place; skips missing values."""
    if not path:
        yield place, fields
    elif path[0] == ITEM:
        for index, item in enumerate(fields if isinstance(fields, list) else []):
            yield from values_at(item, path[1:], (*place, index))
    elif isinstance(fields, Mapping) and path[0] in fields:
        yield from values_at(fields[path[0]], path[1:], (*place, path[0]))


def _is_of_example(finding: Finding, leaf: Leaf, values: Sequence[Any]) -> bool:
    if finding.value is None or finding.spans:
        return False
    return any(value is not None and is_same_for(leaf, finding.value, value) for value in values)


def _answer(example: Example, group: Group, *, quotes: bool) -> dict[str, Any]:
    placed = [(leaf, *each) for leaf in group.leaves for each in values_at(example.fields, leaf.path)]
    absent = [(leaf.path, None) for leaf in group.leaves if ITEM not in leaf.path]
    arrays = {leaf.path[:end] for leaf in group.leaves for end, part in enumerate(leaf.path) if part == ITEM}
    if not quotes:
        return build([*absent, *((place, value) for _, place, value in placed)], sorted(arrays))
    groundings = ground([Sought(value=value, kind=leaf.kind) for leaf, _, value in placed], example.document_text)
    quoted = [
        (place, _quoted(value, grounding.spans, example.document_text))
        for (_, place, value), grounding in zip(placed, groundings, strict=True)
    ]
    return build([*absent, *quoted], sorted(arrays))


def _quoted(value: Any, spans: Sequence[Span], text: str) -> dict[str, Any] | None:
    if value is None:
        return None
    return {"value": value, "quote": text[spans[0].start : spans[0].end] if spans else str(value)}
