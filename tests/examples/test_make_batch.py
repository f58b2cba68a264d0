"""Tests of the committed example batch against its generator."""

from __future__ import annotations

import json
from pathlib import Path

from examples import make_batch
from examples.documents import Split, chat_messages, make_documents

EXAMPLES = Path(make_batch.__file__).parent


def test_the_committed_files_are_what_the_generator_writes(tmp_path: Path) -> None:
    batch_path, gold_path = tmp_path / "batch.jsonl", tmp_path / "gold.jsonl"
    make_batch.write_batch(200, seed=0, batch_path=batch_path, gold_path=gold_path)
    assert batch_path.read_bytes() == (EXAMPLES / "documents.jsonl").read_bytes()
    assert gold_path.read_bytes() == (EXAMPLES / "documents_gold.jsonl").read_bytes()


def test_every_line_is_a_greedy_chat_request_with_its_gold_beside_it(tmp_path: Path) -> None:
    batch_path, gold_path = tmp_path / "batch.jsonl", tmp_path / "gold.jsonl"
    make_batch.write_batch(7, seed=5, batch_path=batch_path, gold_path=gold_path)
    lines = [json.loads(line) for line in batch_path.read_text(encoding="utf-8").splitlines()]
    golds = [json.loads(line) for line in gold_path.read_text(encoding="utf-8").splitlines()]
    documents = list(make_documents(7, split=Split.DEMO, seed=5))
    assert len({line["custom_id"] for line in lines}) == 7
    for line, gold, document in zip(lines, golds, documents, strict=True):
        assert gold == {"custom_id": line["custom_id"], "fields": document.fields}
        assert (line["method"], line["url"]) == ("POST", "/v1/chat/completions")
        assert line["body"] == {
            "model": "demo",
            "messages": chat_messages(document),
            "max_tokens": 64,
            "temperature": 0,
        }
