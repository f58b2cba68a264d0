from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.throughput.__main__ import main
from benchmarks.throughput.report import ThroughputReport, render, speedups
from benchmarks.workload import WorkloadError, read_workload
from engine.device.energy import EnergyMeter
from lab.make_model import make_model
from tests.engine.tiny_shape import TINY_SHAPE


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("bench") / "model", TINY_SHAPE, seed=1)


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    path = tmp_path / "work.jsonl.gz"
    lines = [
        {"prompt_token_ids": [3 + index] * 9, "max_tokens": 2 + 9 * (index % 2), "ignore_eos": True}
        for index in range(6)
    ]
    with gzip.open(path, "wt") as out:
        out.write("\n".join(json.dumps(line) for line in lines))
    return path


def arguments(model: Path, workload: Path) -> list[str]:
    settings = ["--num-kv-blocks", "64", "--num-threads", "1", "--max-num-seqs", "3", "--device", "cpu"]
    return ["--model", str(model), "--workload", str(workload), *settings, "--json"]


def test_a_run_reports_what_it_did(model: Path, workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(model, workload)) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["prompt_tokens"], run["output_tokens"], run["num_failed"]) == (54, 39, 0)
    assert run["output_tokens_per_second"] == pytest.approx(39 / run["wall_seconds"])
    assert 1.0 < run["mean_batch"] <= 3.0
    assert 0.0 < run["kv_use"] < 1.0
    assert 0.0 < run["kv_waste"] < 1.0
    assert run["counters"]["generation_tokens_total"] == 39


@pytest.mark.parametrize("more", [[], ["--compare"]])
def test_failed_requests_fail_the_run_and_their_prompts_are_not_counted(
    more: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "beyond.jsonl"
    lines = [{"prompt_token_ids": ids, "max_tokens": 2} for ids in ([5, 6, 7], [9_000_000], [9_000_001])]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    assert main([*arguments(model, path), *more]) == 1
    printed = capsys.readouterr()
    (run,) = json.loads(printed.out)["runs"]
    assert (run["num_failed"], run["prompt_tokens"]) == (2, 3)
    assert printed.err.startswith(
        "error: 2 of 3 requests failed, the first: The prompt has 9000000 at index 0; token ids"
    )


def test_when_every_request_fails_nothing_was_fast(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "beyond.jsonl"
    path.write_text(json.dumps({"prompt_token_ids": [9_000_000], "max_tokens": 2}))
    assert main(arguments(model, path)) == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert (run["output_tokens_per_second"], run["total_tokens_per_second"]) == (0, 0)


def test_a_run_with_speculation_gives_as_many_tokens_and_reports_its_drafts(
    model: Path, workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(model, workload), "--speculation", "ngram"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["output_tokens"] == 39
    assert run["drafted_tokens"] > 0
    assert 0.0 <= run["acceptance_rate"] <= 1.0


def test_static_batches_take_more_steps_for_the_same_tokens(
    model: Path, workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(arguments(model, workload))
    main([*arguments(model, workload), "--batching", "static"])
    first, second = capsys.readouterr().out.split("\n}\n{")
    continuous, static = json.loads(first + "}")["runs"][0], json.loads("{" + second)["runs"][0]
    assert static["output_tokens"] == continuous["output_tokens"]
    assert static["steps"] > continuous["steps"]


def test_a_comparison_measures_every_kind_in_one_run(
    model: Path, workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(model, workload), "--compare", "--static-batch-sizes", "2", "--batch-sizes", "2,3"]) == 0
    body = json.loads(capsys.readouterr().out)
    names = [run["name"] for run in body["runs"]]
    assert names == ["continuous-3", "static-3", "static-2", "transformers-2", "transformers-3"]
    assert set(body["speedups"]) == {"static-3", "static at its best", "transformers at its best"}
    assert {run["output_tokens"] for run in body["runs"]} == {39}


REPORT = ThroughputReport(
    name="continuous-4",
    num_requests=1,
    num_failed=0,
    prompt_tokens=1,
    output_tokens=1,
    wall_seconds=1.0,
    cpu_seconds=1.0,
    output_tokens_per_second=60.0,
    total_tokens_per_second=1.0,
)


def test_speedups_are_against_the_same_limit_and_the_best_of_each_kind() -> None:
    others = [
        replace(REPORT, name=f"static-{size}", output_tokens_per_second=rate) for size, rate in ((4, 10.0), (2, 20.0))
    ]
    assert speedups([REPORT, *others]) == {"static-4": 6.0, "static at its best": 3.0}


def test_joules_per_token_are_shown_where_they_are_known() -> None:
    unknown, known = REPORT, replace(REPORT, joules_per_output_token=0.25)
    assert "joules_per_output_token  0.250" in render([known])
    assert "joules" not in render([unknown])
    heads, *rows = (line.split() for line in render([known, unknown]).splitlines()[:3])
    assert [row[heads.index("joules_per_output_token")] for row in rows] == ["0.250", "-"]


def test_joules_of_a_run_are_shared_by_its_output_tokens(
    model: Path, workload: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EnergyMeter, "joules", 78.0)
    assert main(arguments(model, workload)) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["joules_per_output_token"] == 2.0


def test_a_bad_workload_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt_token_ids": [1], "max_tokens": 2}\n{"prompt_token_ids": [1]}\n')
    with pytest.raises(WorkloadError, match="line 2"):
        read_workload(path)


def test_a_missing_model_is_one_sentence(workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(Path("/nowhere/model"), workload)) == 1
    assert capsys.readouterr().err.startswith("error: There is no model directory at /nowhere/model")


def test_the_same_seed_makes_the_same_model(tmp_path: Path, model: Path) -> None:
    again = make_model(tmp_path / "again", TINY_SHAPE, seed=1)
    other = make_model(tmp_path / "other", TINY_SHAPE, seed=2)
    weights = [(path / "model.safetensors").read_bytes() for path in (model, again, other)]
    assert weights[0] == weights[1] != weights[2]
