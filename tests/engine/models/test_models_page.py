"""Tests docs/models.md, apart from test_models_table.py: the page names the client, whose code no family depends on."""

from __future__ import annotations

from tests.engine.models.models_table import PAGE, models_page


def test_the_page_is_what_the_generator_prints() -> None:
    assert PAGE.read_text() == models_page(), "run: python -m tests.engine.models.models_table"
