"""Tests of the README's first example, run word for word in a new folder with no settings."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.service import ROOT, clean_environment

pytestmark = pytest.mark.long

README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, *, after: str = "") -> str:
    """Return the first block of code in `language` behind a text."""
    found = re.search(rf"^```{language}\n(.*?)^```$", README[README.index(after) :], re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_first_example_prints_what_the_readme_shows(tmp_path: Path) -> None:
    environment = clean_environment(
        PATH=f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", XDG_DATA_HOME=str(tmp_path / "home")
    )
    done = subprocess.run(
        ["bash", "-euc", block("bash")],
        capture_output=True, text=True, check=False, timeout=280, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, block("text")), done.stderr
    assert "1 of 1 line completed" in done.stderr


def test_the_engine_alone_prints_the_answer_of_the_first_example() -> None:
    done = subprocess.run(
        [sys.executable, "-c", block("python", after="## Use the engine alone")],
        capture_output=True, text=True, check=False, timeout=280, cwd=ROOT, env=clean_environment(),
    )  # fmt: skip
    answer = json.loads(f"{{{block('text')}}}")["content"]
    assert (done.returncode, done.stdout) == (0, f"{answer}\n"), done.stderr


def test_the_readme_is_no_book() -> None:
    assert len(README.splitlines()) <= 150
