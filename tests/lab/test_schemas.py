"""Tests of the counts in the measurement of schemas."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lab.schemas import main

pytest.importorskip("llguidance")

SCHEMAS = {
    "kept": {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"]},
    "refused": {"type": "array", "uniqueItems": True},
}


def test_schemas_are_counted_and_their_texts_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("kept", "refused"):
        (tmp_path / f"{name}.json").write_text(json.dumps(SCHEMAS[name]))
    assert main([str(tmp_path), "--walks", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"compiled in \d+\.\d ms of processor time, 95 % within \d+\.\d ms", lines.pop(1))
    assert lines == [
        "1 of 2 schemas kept",
        "     1 refused: The JSON schema uses uniqueItems, which is not supported; remove it.",
        "3 texts written, 0 invalid; 0 more were cut off",
    ]


def test_an_invalid_text_is_shown_and_fails_the_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`lenient` makes llguidance accept keywords that it does not enforce."""
    wrong = {"const": 1, "not": {"const": 1}, "x-guidance": {"lenient": True, "whitespace_flexible": False}}
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    assert main([str(tmp_path), "--walks", "1"]) == 1
    assert "1 texts written, 1 invalid" in capsys.readouterr().out
