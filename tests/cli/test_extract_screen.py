"""What the table at the end of an extraction says of a value's place."""

from __future__ import annotations

from typing import Any

import pytest

from cli.extracting.screen import where

SPAN = {"start": 11, "end": 18, "page": 0, "box": None}


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ({"grounding": "exact", "spans": [SPAN], "features": {"status": "exact"}}, "page 1, character 11"),
        ({"grounding": "fuzzy", "spans": [SPAN], "features": {"status": "fuzzy"}}, "about page 1, character 11"),
        ({"grounding": "none", "spans": [], "features": {"status": "none"}}, "not found"),
        ({"grounding": "none", "spans": [], "features": {}}, "concluded"),
        ({"grounding": "none", "spans": [], "features": {}, "value": None}, ""),
        ({"grounding": "none", "spans": [], "features": {}, "value": []}, ""),
    ],
)
def test_a_value_that_need_not_stand_in_its_document_is_not_missed_there(told: dict[str, Any], shown: str) -> None:
    assert where({"value": "a", **told}) == shown
