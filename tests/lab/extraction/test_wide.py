"""Tests of the schema with hundreds of fields."""

from __future__ import annotations

from features.documents.extraction.fields.groups import groups
from features.documents.extraction.fields.schema import FieldSchema
from lab.extraction.wide import wide_schema


def test_a_wide_schema_has_as_many_leaves_as_are_wanted_in_groups() -> None:
    schema = FieldSchema.parse(wide_schema(369))
    parts = groups(schema, max_tokens=384)
    assert len({leaf.path for part in parts for leaf in part.leaves}) == len(schema.leaves) == 369
    assert len(parts) > 30
