"""Tests that garbage collection is off while modules load, and as before afterwards."""

from __future__ import annotations

import gc

import pytest

from cli.loading import without_collections


@pytest.mark.parametrize("is_on", [True, False])
def test_collections_are_off_while_modules_load_and_then_as_before(*, is_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if is_on else gc.disable)()
        with without_collections():
            assert not gc.isenabled()
        assert gc.isenabled() == is_on
    finally:
        (gc.enable if before else gc.disable)()
