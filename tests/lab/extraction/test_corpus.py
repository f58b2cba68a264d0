"""Tests of the corpus benchmark at a small size: everything is read, and its figures add up."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from lab.extraction.__main__ import main
from lab.extraction.corpus import make_document
from tests.features.documents.extraction.passages.builders import byte_tokenizer


def test_all_documents_are_read_cut_and_indexed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(byte_tokenizer())
    small = ["corpus", "--documents", "12", "--processes", "1", "--json"]
    assert main([*small, "--tokenizer", str(tmp_path / "tokenizer.json")]) == 0
    costs = json.loads(capsys.readouterr().out)
    assert costs["num_documents"] == 12
    assert costs["num_passages"] > 24
    assert min(costs["document_bytes"], costs["index_bytes"]) > 1000


def test_what_is_no_tokenizer_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["corpus", "--tokenizer", str(tmp_path / "none.json")])
    assert "none.json: " in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["pdf", "txt", "html", "eml", "md"])
def test_a_document_is_the_same_each_time_and_says_the_same_in_every_format(suffix: str) -> None:
    first, second = (make_document(suffix, random.Random(7)) for _ in range(2))
    words = parse(make_document("txt", random.Random(7)), "a.txt", Limits()).text.split()
    assert first == second
    assert set(words[:40]) <= set(parse(first, f"a.{suffix}", Limits()).text.split())
