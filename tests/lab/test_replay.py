from __future__ import annotations

import csv
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.workload import WorkloadRequest
from engine.config import PolicyName
from lab import study
from lab.calibration import as_simulated, calibration_workload
from lab.make_model import make_model
from lab.replay import main
from lab.simulation import line_order
from lab.traces import DEADLINE_SHARES, TraceError, read_trace, requests_of
from tests.engine.tiny_shape import TINY_SHAPE

SHAPE = replace(TINY_SHAPE, max_position_embeddings=1200)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Write two tenants' requests: many long ones at once, and a short one every half second."""
    path = tmp_path / "trace.csv"
    rows = [(0.0, 3000, 40, "big")] * 150 + [(index / 2, 100, 10, "small") for index in range(40)]
    with path.open("w") as out:
        csv.writer(out).writerows([("arrival_s", "prompt_tokens", "output_tokens", "client"), *sorted(rows)])
    return path


def test_a_trace_can_be_repeated_and_made_denser(trace: Path) -> None:
    rows = read_trace(trace)
    requests = list(requests_of(rows, speed_up=2.0, count=400))
    arrivals = [request.arrival_seconds for request in requests]
    assert len(requests) == 400
    assert arrivals == sorted(arrivals)
    assert (arrivals[189], arrivals[190]) == (19.5 / 2, 20.5 / 2)


def test_what_a_trace_lacks_is_made_up_the_same_each_time(trace: Path) -> None:
    rows = read_trace(trace)
    requests = list(requests_of(rows, speed_up=1.0))
    assert requests == list(requests_of(rows, speed_up=1.0))
    assert {request.max_tokens for request in requests} == {16, 64}
    assert set(Counter(request.priority for request in requests)) == {0, 1, 2}
    left = {round(request.deadline - request.arrival_seconds) for request in requests if request.deadline is not None}
    assert left == set(DEADLINE_SHARES)
    assert {request.tenant: request.num_prefix_tokens for request in requests} == {"big": 1500, "small": 50}


def test_a_bad_row_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0.0,5,5\n1.0,many,5\n")
    with pytest.raises(TraceError, match="line 3 is not a request"):
        read_trace(path)
    assert main(["trace", "--trace", str(tmp_path / "none.csv")]) == 1
    assert "There is no trace at" in capsys.readouterr().err
    good = "arrival_s,prompt_tokens,output_tokens\n0.0,5,5\n"
    path.write_text(good)
    assert main(["trace", "--trace", str(path), "--cost", str(path)]) == 1
    assert "is not a cost model printed by calibrate" in capsys.readouterr().err


def test_a_trace_is_replayed_from_the_command_line(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "--trace", str(trace), "--policy", "fair", "--requests", "200"]) == 0
    out = capsys.readouterr().out
    assert "| fair | " in out
    assert "KV waste" in out
    assert re.search(r"^\d+ steps, each \d+\.\d\d ms of CPU time", out, re.MULTILINE)


def test_every_policy_runs_every_request_and_fair_spares_the_small_tenant(trace: Path) -> None:
    runs = {run.policy: run for run in study.replay_all(read_trace(trace), speed_up=1.0)}
    assert set(runs) == set(PolicyName)
    assert {len(run.result.number) for run in runs.values()} == {190}
    worst = {policy: max(run.by_tenant(run.queue_seconds)["small"]) for policy, run in runs.items()}
    assert worst[PolicyName.FAIR] < worst[PolicyName.FCFS] / 4


def test_the_study_s_tables_have_a_row_for_each_policy_and_tenant(trace: Path) -> None:
    runs = study.replay_all(read_trace(trace), speed_up=1.0, count=60)
    text = study.render(runs, runs)
    assert text.count("\n| fair | ") == 5
    assert "\n| big | " in text


def test_plots_are_written(trace: Path, tmp_path: Path) -> None:
    plots = pytest.importorskip("lab.plots", reason="matplotlib is not installed")
    runs = study.replay_all(read_trace(trace), speed_up=1.0, count=160)
    for path in plots.draw(runs, runs, tmp_path / "plots"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_requests_with_a_common_beginning_share_what_is_common() -> None:
    prompts = [[1] * 20 + [2], [1] * 20 + [3, 4], [1] * 25, [5] * 20]
    requests = [
        WorkloadRequest(prompt_token_ids=prompt, max_tokens=3, ignore_eos=True, arrival_seconds=0.0)
        for prompt in prompts
    ]
    simulated = as_simulated(requests, block_size=16)
    assert [request.num_prefix_tokens for request in simulated] == [20, 20, 20, 0]
    assert len({request.prefix for request in simulated[:3]}) == 1
    assert simulated[3].prefix == ""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("replay") / "model", SHAPE, seed=1)


def test_a_calibrated_model_is_a_cost_model_for_traces(
    model: Path, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = tmp_path / "work.jsonl"
    lines = [{**_as_line(request), "prompt_token_ids": request.prompt_token_ids[:40]} for request in _few()]
    workload.write_text("\n".join(json.dumps(line) for line in lines))
    sizes = ["--num-kv-blocks", "400", "--num-threads", "1", "--device", "cpu"]
    assert main(["calibrate", "--model", str(model), "--workload", str(workload), *sizes]) == 0
    cost = tmp_path / "cost.json"
    cost.write_text(capsys.readouterr().out)
    fitted = json.loads(cost.read_text())
    assert set(fitted) == {"decode", "mixed"}
    assert all(value >= 0.0 for parts in fitted.values() for value in parts.values())
    assert main(["trace", "--trace", str(trace), "--cost", str(cost), "--requests", "20"]) == 0


def test_a_validation_takes_the_steps_that_it_predicts(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = tmp_path / "work.jsonl"
    workload.write_text("\n".join(json.dumps(_as_line(request)) for request in _few()))
    sizes = ["--num-kv-blocks", "400", "--num-threads", "1", "--device", "cpu"]
    assert main(["validate", "--model", str(model), "--workload", str(workload), *sizes]) == 0
    out = capsys.readouterr().out
    report = json.loads(out[: out.rindex("}") + 1])
    # Durations depend on the machine; the steps do not.
    assert report["measured_steps"] == report["predicted_steps"] > 10
    assert report["predicted_tokens_per_second"] > 0.0


def _few() -> list[WorkloadRequest]:
    short, long, *_ = calibration_workload(SHAPE.vocab_size, num_requests=12)
    return [request for request in short + long if request.max_tokens < 64]


def _as_line(request: WorkloadRequest) -> dict[str, object]:
    return {"prompt_token_ids": request.prompt_token_ids, "max_tokens": request.max_tokens, "ignore_eos": True}


@pytest.mark.parametrize(
    ("flag", "given", "allowed"),
    [
        ("--max-num-batched-tokens", "0", "a whole number of at least 1"),
        ("--max-num-seqs", "-3", "a whole number of at least 1"),
        ("--num-kv-blocks", "many", "a whole number of at least 1"),
        ("--requests", "1.5", "a whole number of at least 1"),
        ("--speed-up", "0", "a number above 0"),
        ("--speed-up", "nan", "a number above 0"),
    ],
)
def test_a_number_that_no_replay_can_have_is_refused_with_what_is_allowed(
    flag: str, given: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["trace", "--trace", "trace.csv", f"{flag}={given}"])
    assert ended.value.code == 2
    assert f"{flag}: {given} is given; it must be {allowed}." in capsys.readouterr().err


def test_the_order_of_lines_is_compared_and_the_longest_first_where_a_trace_is_given(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_order, "SHARING", ((12, 6, 3000),))
    monkeypatch.setattr(line_order, "BATCH_LINES", (40,))
    assert main(["order", "--trace", str(trace)]) == 0
    by_prompt, longest_first = capsys.readouterr().out.strip().split("\n\n")
    (row,) = by_prompt.splitlines()[2:]
    found_by_arrival, found_by_prompt, most = (float(cell.strip(" %")) for cell in row.split("|")[3:6])
    assert found_by_arrival < found_by_prompt <= most
    assert len(longest_first.splitlines()) == 2 + 4
