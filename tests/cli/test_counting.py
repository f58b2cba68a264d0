"""Tests of a dry run's counts: locally by the model's tokenizer, at a server by a worker, and otherwise by bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.estimating.estimate import Counted, estimated
from cli.served_model import ServedModel
from cli.service.local import LocalTarget
from jobs.errors import InputError
from tests.cli.service import ROOT, Service

DEMO = ServedModel(name="demo", path=str(ROOT / "examples" / "demo_model"))
NOT_FETCHED = ServedModel(name="demo", path="nobody/none-such")
SCHEMA = {"type": "object", "properties": {"vendor": {"type": "string"}}, "required": ["vendor"]}
TABLE = "text\nhello\nworld\nmoon\n"


def write(path: Path, texts: Sequence[str], **more: Any) -> Path:
    lines = []
    for number, text in enumerate(texts):
        body = {"model": "demo", "messages": [{"role": "user", "content": text}], **more}
        lines.append({"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def count(served: ServedModel, lines: Path) -> Counted:
    return LocalTarget(served=served, data_dir=lines.parent / "data").count(lines)


def test_prompts_are_counted_by_the_models_template_and_tokenizer(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(DEMO.path)
    texts = ["Total 20.00 EUR", "Birch GmbH"]
    expected = [
        len(tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"])
        for text in texts
    ]
    found = count(DEMO, write(tmp_path / "in.jsonl", texts, max_tokens=9))
    assert (found.num_lines, found.input_tokens, found.output_tokens) == (2, sum(expected), 18)
    assert found.basis.startswith("prompts exactly")


def test_what_fails_or_has_an_earlier_answer_takes_nothing(tmp_path: Path) -> None:
    once = count(DEMO, write(tmp_path / "in.jsonl", ["a"], max_tokens=9, temperature=0))
    texts = ["a", "a", "z" * 5000]
    found = count(DEMO, write(tmp_path / "in.jsonl", texts, max_tokens=9, temperature=0))
    assert (found.num_lines, found.input_tokens, found.output_tokens) == (1, once.input_tokens, once.output_tokens)
    assert sum(text == "1 line" for text in found.fields.values()) == 2, "both are told"


def test_a_model_that_was_not_fetched_is_counted_by_bytes_and_not_fetched(tmp_path: Path) -> None:
    found = count(NOT_FETCHED, write(tmp_path / "in.jsonl", ["hello"] * 3, max_tokens=9))
    assert (found.num_lines, found.output_tokens, "by bytes" in found.basis) == (3, 27, True)


@pytest.mark.parametrize(("max_tokens", "least", "most"), [(900, 10, 100), (2, 4, 4)])
def test_an_answer_is_likely_as_long_as_its_schemas_typical_one(
    tmp_path: Path, max_tokens: int, least: int, most: int
) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    lines = write(tmp_path / "in.jsonl", ["a", "b"], max_tokens=max_tokens, response_format=asked)
    found, shown = estimated(LocalTarget(served=DEMO, data_dir=tmp_path / "data"), lines)
    assert found.most_tokens == found.input_tokens + 2 * max_tokens
    assert found.output_tokens is not None
    assert least <= found.output_tokens <= most
    assert shown["tokens"].startswith("likely ")


def test_a_line_that_asks_for_several_answers_takes_each_of_them(tmp_path: Path) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    place, found = LocalTarget(served=DEMO, data_dir=tmp_path / "data"), []
    for num_answers in (1, 3):
        lines = write(tmp_path / "in.jsonl", ["a", "b"], max_tokens=90, response_format=asked, n=num_answers)
        found.append(estimated(place, lines)[0])
    assert found[0].input_tokens == found[1].input_tokens
    assert (found[1].output_tokens or 0) == pytest.approx(3 * (found[0].output_tokens or 0), rel=0.2)


def test_without_a_schema_only_the_most_is_told(tmp_path: Path) -> None:
    lines = write(tmp_path / "in.jsonl", ["a", "b"], max_tokens=9)
    found, shown = estimated(LocalTarget(served=DEMO, data_dir=tmp_path / "data"), lines)
    assert (found.output_tokens, "likely" in shown["tokens"]) == (None, False)


def table(folder: Path) -> list[str]:
    (folder / "in.csv").write_text(TABLE)
    (folder / "prompt.j2").write_text("{{ text }}")
    (folder / "out.json").write_text(json.dumps(SCHEMA))
    named = ["--prompt", str(folder / "prompt.j2"), "--schema", str(folder / "out.json")]
    return ["map", str(folder / "in.csv"), *named, "--data-dir", str(folder / "d"), "--dry-run"]


def test_where_no_worker_serves_the_model_nobody_is_waited_for(service: Service, tmp_path: Path) -> None:
    found = service.run(*table(tmp_path), "--max-tokens", "9")
    assert found.exit_code == 0, found.stderr
    assert "No running worker serves the model 'tiny'" in found.stdout
    assert "By bytes" in found.stdout
    assert service.run("files", "list").stdout.count("\n") == 1, "what was uploaded is deleted"


def test_what_the_server_would_not_run_is_refused_with_its_reason(service: Service, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="3 of 3 checked lines are invalid, and one fails the batch; line 1: temp"):
        service.run(*table(tmp_path), "--temperature", "7")
