"""Tests that docs/extraction.md names every code and every format."""

from __future__ import annotations

import re
from pathlib import Path

from features.documents.extraction.documents.formats import Format
from features.documents.extraction.errors import DocumentCode

PAGE = (Path(__file__).resolve().parents[5] / "docs" / "extraction.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Documents")[2].partition("\n## ")[0]


def test_every_code_is_explained() -> None:
    explained = [
        code for row in re.findall(r"^\| (`[a-z_`, ]+) \|", SECTION, re.M) for code in re.findall("`(.+?)`", row)
    ]
    assert explained == [str(code) for code in DocumentCode]


def test_every_format_is_listed() -> None:
    table = SECTION.partition("| format |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| ([a-z, ]+?) \|", table, re.M)
    assert sorted(", ".join(rows).split(", ")) == sorted(Format)
