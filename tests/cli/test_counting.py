"""Tests of a dry run's counts: locally by the model's tokenizer, at a server by a worker, and otherwise by bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cli.estimating.counting import count_lines
from cli.estimating.estimate import Counted, estimated
from cli.served_model import ServedModel
from cli.service.local import LocalTarget
from features.pipelines.rows.lines.requests import ENDPOINT
from jobs.errors import InputError
from tests.cli.service import ROOT, Service
from tests.workers.thinking.families import thinking_tokenizer
from workers.prompts import PromptMaker

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


class Measured:
    """A place where a token is a letter, with what it knows of the thoughts of its model."""

    def __init__(self, thoughts: float | None, *, may_think: bool = False) -> None:
        self._thoughts, self._may_think = thoughts, may_think

    def count(self, lines: Path, *, endpoint: str = ENDPOINT) -> Counted:
        bodies = [json.loads(line)["body"] for line in lines.read_text().splitlines()]
        return Counted(
            num_lines=len(bodies),
            input_tokens=sum(len(body.get("prompt", "")) for body in bodies),
            output_tokens=1000 * len(bodies),
            basis="by letters",
            thoughts=self._thoughts,
            may_think=self._may_think,
        )


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, 60),
        ({"n": 2}, 120),
        ({"thinking_token_budget": 20}, 20),
        ({"thinking_token_budget": 200}, 60),
        ({"thinking_token_budget": 0}, 0),
        ({"chat_template_kwargs": {"enable_thinking": False}}, 0),
        ({"chat_template_kwargs": {"enable_thinking": True}}, 60),
    ],
)
def test_a_likely_answer_has_the_thoughts_that_were_measured(
    tmp_path: Path, params: dict[str, Any], expected: int
) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    lines = write(tmp_path / "in.jsonl", ["a", "b"], response_format=asked, max_tokens=900, **params)
    without, _ = estimated(Measured(None), lines)
    found, shown = estimated(Measured(60.0), lines)
    assert (found.output_tokens or 0) - (without.output_tokens or 0) == 2 * expected
    assert (f"{expected} tokens of thoughts" in shown["likely"]) is (expected > 0)


def test_an_answer_that_may_think_for_an_unknown_time_is_not_estimated(tmp_path: Path) -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    place = Measured(None, may_think=True)
    lines = write(tmp_path / "in.jsonl", ["a"], response_format=asked, max_tokens=900)
    found, shown = estimated(place, lines)
    assert (found.output_tokens, found.most_tokens) == (None, 1000)
    assert "not measured" in shown["likely"]
    lines = write(tmp_path / "in.jsonl", ["a"], response_format=asked, max_tokens=900, thinking_token_budget=0)
    assert estimated(place, lines)[0].output_tokens is not None


@pytest.mark.parametrize(
    ("params", "is_bounded"), [({"max_tokens": 9}, True), ({"max_completion_tokens": 9}, True), ({}, False)]
)
def test_at_most_holds_only_where_answers_are_bounded(tmp_path: Path, params: dict[str, Any], is_bounded: bool) -> None:
    found, shown = estimated(Measured(None), write(tmp_path / "in.jsonl", ["a"], **params))
    assert found.is_bounded is is_bounded
    assert shown["tokens"].endswith("at most 1,000") is is_bounded
    assert found.plus(found).is_bounded is found.share(0.5, most_tokens=7).is_bounded is is_bounded


def test_a_model_that_may_think_is_known_by_its_template(tmp_path: Path) -> None:
    prompts = PromptMaker(thinking_tokenizer("qwen3"), max_model_len=4096, vocab_size=512)
    lines = write(tmp_path / "in.jsonl", ["a"], max_tokens=9)
    assert count_lines(lines, prompts, endpoint=ENDPOINT).may_think
    off = write(tmp_path / "in.jsonl", ["a"], max_tokens=9, chat_template_kwargs={"enable_thinking": False})
    assert not count_lines(off, prompts, endpoint=ENDPOINT).may_think


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
    with pytest.raises(InputError, match="3 of 3 checked lines are invalid, and one fails the batch; line 1: stop"):
        service.run(*table(tmp_path), "--param", "stop=7")
