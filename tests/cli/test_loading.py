"""Tests that garbage collection is off while modules load, as before afterwards, and walks none of them at the end."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from cli.loading import without_collections
from tests.cli.service import ROOT

AT_THE_END = """
import atexit, gc
atexit.register(lambda: print(len(gc.get_objects())))  # handlers run in reverse order
from cli.main import main
main()
"""


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


def test_a_command_leaves_nothing_to_collect_at_its_end() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AT_THE_END, "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout.splitlines()[-1]) < 1000
