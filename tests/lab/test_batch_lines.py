"""Tests of workloads of real text: the lines of an OpenAI batch file in a model's tokens, with answers' schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.throughput import __main__ as throughput
from benchmarks.workload import read_workload
from engine.tokenizer import load_tokenizer
from examples.make_tasks import main as make_tasks
from examples.make_tasks import task_lines
from lab.make_workload import main
from lab.peers.__main__ import main as compare_with_peers

DEMO = Path(__file__).parents[2] / "examples" / "demo_model"


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    tasks, path = tmp_path / "tasks.jsonl", tmp_path / "demo_tasks.jsonl"
    make_tasks([str(tasks), "--count", "6", "--seed", "3"])
    assert main([str(path), "--lines", str(tasks), "--tokenizer", str(DEMO)]) == 0
    return path


def write(path: Path, **body: Any) -> Path:
    path.write_text(json.dumps({"custom_id": "a", "body": {"messages": [{"role": "user", "content": "Hi"}], **body}}))
    return path


def test_the_lines_of_a_batch_become_requests_in_the_models_tokens(workload: Path) -> None:
    tokenizer: Any = load_tokenizer(DEMO)
    lines, requests = task_lines(["questions", "fields", "copies"], 6, seed=3), read_workload(workload)
    for line, request in zip(lines, requests, strict=True):
        body = line["body"]
        said = body["messages"][0]["content"]
        assert said in tokenizer.decode(request.prompt_token_ids)
        assert request.prompt_token_ids == tokenizer.apply_chat_template(
            body["messages"], add_generation_prompt=True, tokenize=True, return_dict=False
        )
        assert (request.max_tokens, request.ignore_eos) == (body["max_tokens"], False)
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
        assert (None if request.json_schema is None else json.loads(request.json_schema)) == schema
    assert [request.json_schema is not None for request in requests] == [False, True, False] * 2


def test_a_run_keeps_answers_to_their_schemas(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    arguments = ["--model", str(DEMO), "--workload", str(workload), "--device", "cpu", "--num-threads", "1"]
    assert throughput.main([*arguments, "--num-kv-blocks", "128", "--speculation", "ngram", "--json"]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["num_failed"] == 0
    assert run["counters"]["num_forced_tokens_total"] > 0, "the keys of an object are known before they are sampled"


def test_what_transformers_and_peers_cannot_be_given_is_refused(
    workload: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--workload", str(workload), "--compare", "--model"]
    assert throughput.main([*arguments, str(DEMO)]) == 1
    assert "does not support JSON schemas" in capsys.readouterr().err
    assert throughput.main([*arguments, str(tmp_path / "a.gguf")]) == 1
    assert "make_model OUT --weights" in capsys.readouterr().err
    assert compare_with_peers(["--models", str(DEMO), "--workloads", str(workload)]) == 2
    assert "demo_tasks.jsonl has requests with a JSON schema" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "max_tokens"),
        ({"max_tokens": 4, "tools": []}, "it has tools"),
        ({"max_tokens": 4, "response_format": {"type": "json_object"}}, "'json_object'"),
    ],
)
def test_a_line_that_cannot_be_run_is_named(
    body: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "lines.jsonl", **body)
    assert main([str(tmp_path / "out"), "--lines", str(path), "--tokenizer", str(DEMO)]) == 1
    said = capsys.readouterr().err
    assert "lines.jsonl line 1 is not a chat completion" in said
    assert reason in said
    assert not (tmp_path / "out").exists()


def test_lines_without_a_file_or_a_tokenizer_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "out"), "--lines", "lines.jsonl"])
    assert "--lines and --tokenizer go together" in capsys.readouterr().err
    assert main([str(tmp_path / "out"), "--lines", str(tmp_path / "none"), "--tokenizer", str(DEMO)]) == 1
    assert "There is no batch file at" in capsys.readouterr().err
