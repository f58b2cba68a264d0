"""Tests of generated workloads: readable, reproducible, and with the requested tail."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.workload import read_workload
from lab.make_workload import LIKE, main


def test_a_written_workload_is_read_back_and_its_lengths_lie_in_the_ranges(tmp_path: Path) -> None:
    path = tmp_path / "workload.jsonl"
    assert main([str(path), "--requests", "400", "--vocab-size", "50"]) == 0
    requests = read_workload(path)
    assert len(requests) == 400
    assert all(16 <= len(request.prompt_token_ids) <= 64 for request in requests)
    assert all(0 <= token < 50 for request in requests for token in request.prompt_token_ids)
    lengths = sorted(request.max_tokens for request in requests)
    assert lengths[0] >= 16
    assert lengths[-1] <= 1024
    assert lengths[200] < 40, "the median of a Pareto(1) from 16 is 32"
    assert lengths[-1] > 10 * lengths[200]


@pytest.mark.parametrize(
    ("like", "num_requests", "num_beginnings"),
    [
        ("W1", 128, 128),
        ("W2", 128, 1),
        ("W3", 8, 8),
        ("long-prompts", 32, 32),
        ("prefixes", 128, 8),
        ("long-outputs", 32, 32),
    ],
)
def test_each_named_workload_has_its_lengths_and_its_prefixes_in_common(
    like: str, num_requests: int, num_beginnings: int, tmp_path: Path
) -> None:
    path = tmp_path / "workload.jsonl"
    assert main([str(path), "--like", like]) == 0
    requests, lengths = read_workload(path), LIKE[like]
    low, high = (lengths.prefix_tokens + limit for limit in lengths.prompt_tokens)
    assert len(requests) == num_requests
    assert all(low <= len(one.prompt_token_ids) <= high for one in requests)
    assert all(lengths.output_tokens[0] <= one.max_tokens <= lengths.output_tokens[1] for one in requests)
    assert len({tuple(one.prompt_token_ids[: lengths.prefix_tokens or 8]) for one in requests}) == num_beginnings
    assert len({tuple(one.prompt_token_ids) for one in requests}) == num_requests


def test_prefixes_without_a_length_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path / "a"), "--prefixes", "3"])
    assert "--prefixes 3: give their length with --shared-prefix" in capsys.readouterr().err


def test_lengths_may_be_those_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, trace = tmp_path / "workload.jsonl", tmp_path / "trace.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0.5,7,3\n1.5,5,9\n")
    assert main([str(path), "--requests", "3", "--vocab-size", "50", "--trace", str(trace)]) == 0
    lengths = [(len(request.prompt_token_ids), request.max_tokens) for request in read_workload(path)]
    assert lengths == [(7, 3), (5, 9), (7, 3)]
    assert main([str(path), "--trace", str(tmp_path / "none.csv")]) == 1
    assert "There is no trace at" in capsys.readouterr().err


def test_the_same_seed_writes_the_same_file(tmp_path: Path) -> None:
    first, second, other = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    for path, seed in ((first, "1"), (second, "1"), (other, "2")):
        main([str(path), "--requests", "5", "--seed", seed])
    assert first.read_text() == second.read_text() != other.read_text()


def test_a_range_the_wrong_way_round_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / "a"), "--prompt-tokens", "64", "16"])
    assert ended.value.code == 2
    assert "--prompt-tokens 64 16: the first number" in capsys.readouterr().err
