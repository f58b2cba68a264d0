"""Prompts for a document and its fields: fields in words, never as a JSON schema.

The part shared by most requests comes first, so that it is computed once: the fields for many documents with one
schema, the document for many groups. Both passes of a document differ only after that part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from features.documents.extraction.fields.groups import Group
from features.documents.extraction.fields.leaf import Kind, Leaf, LeafType
from features.documents.extraction.fields.paths import ITEM, Path, spell
from features.documents.extraction.fields.shapes import Container
from features.documents.extraction.passes.enclosing import enclosed

SYSTEM = "You read documents and say what stands in them. What a document does not say is null; never guess."


class Shape(StrEnum):
    """The part of a prompt that comes first."""

    FIELDS_FIRST = "fields_first"  # many documents, one group
    DOCUMENT_FIRST = "document_first"  # one document, many groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The parts of a chat completion body that the extraction determines."""

    messages: tuple[Mapping[str, str], ...]
    response_format: Mapping[str, Any]


def choose_shape(num_groups: int) -> Shape:
    """Return the shape to use: with several groups each document is read several times."""
    return Shape.FIELDS_FIRST if num_groups == 1 else Shape.DOCUMENT_FIRST


def request(
    document_text: str, *, shared: str, task: str, shape: Shape, name: str, schema: Mapping[str, Any]
) -> Request:
    """Return a request: the fields and examples (`shared`) and the document in the order of `shape`, then the task."""
    document = enclosed(document_text, "document")
    parts = [shared, document] if shape is Shape.FIELDS_FIRST else [document, shared]
    content = "\n\n".join(part for part in (*parts, task) if part)
    return Request(
        messages=({"role": "system", "content": SYSTEM}, {"role": "user", "content": content}),
        response_format={"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}},
    )


def fields_in_words(group: Group) -> str:
    """Return one line per leaf; the fields of an array's items follow it, indented."""
    lines = ["Fields:"]
    listed: set[Path] = set()
    for leaf in group.leaves:
        for end in range(1, len(leaf.path)):
            container = leaf.path[:end]
            if container not in listed and leaf.path[end] == ITEM and end + 1 < len(leaf.path):
                listed.add(container)
                lines.append(_list_line(container, group.containers[container]))
        lines.append(_leaf_line(leaf))
    return "\n".join(lines)


def _list_line(path: Path, container: Container) -> str:
    return f"{_indent(path)}- {_local(path)}: list, one entry for each in the document{_suffix(container.description)}"


def _leaf_line(leaf: Leaf) -> str:
    if leaf.path[-1] == ITEM:
        return f"{_indent(leaf.path[:-1])}- {_local(leaf.path[:-1])}: list of {_kind(leaf)}{_suffix(leaf.description)}"
    return f"{_indent(leaf.path)}- {_local(leaf.path)}: {_kind(leaf)}{_suffix(leaf.description)}"


def _indent(path: Path) -> str:
    return "  " * path.count(ITEM)


def _local(path: Path) -> str:
    """Return the part of a path after its innermost item."""
    inner = len(path) - path[::-1].index(ITEM) if ITEM in path else 0
    return spell(path[inner:])


def _suffix(description: str) -> str:
    return f"; {description}" if description else ""


def _kind(leaf: Leaf) -> str:
    if leaf.enum is not None:
        return "one of " + ", ".join(map(str, leaf.enum))
    if leaf.kind is Kind.DATE:
        return "day as YYYY-MM-DD"
    if leaf.type is LeafType.STRING:
        return "text"
    return {LeafType.BOOLEAN: "true or false", LeafType.INTEGER: "whole number"}.get(leaf.type, "number")
