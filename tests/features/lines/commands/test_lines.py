"""Tests of `tokenmill batch lines` against an API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import InputError
from tests.cli.service import Service, completed, failed, write_lines


@pytest.fixture(scope="module")
def batch_id(service: Service, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A batch of six lines that has ended; 2 and 5 (from 1) have failed."""
    path: Path = write_lines(tmp_path_factory.mktemp("input") / "in.jsonl", count=6, prompt="Why?")
    batch_id: str = service.run("batch", "create", path).stdout.strip()
    failures = [failed(1, code="too_long"), failed(4, code="engine_failure")]
    answers = [completed(number, content=f"answer {number}\tof\n") for number in (0, 2, 3, 5)]
    service.work_off(batch_id, [*answers, *failures])
    return batch_id


def listed(service: Service, *arguments: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = json.loads(service.run("batch", "lines", *arguments, "--json").stdout)
    return lines


def test_lines_are_rows_with_number_status_code_and_text(service: Service, batch_id: str) -> None:
    header, *rows = (line.split("\t") for line in service.run("batch", "lines", batch_id).stdout.splitlines())
    assert header == ["number", "custom_id", "status", "code", "excerpt"]
    assert rows[0] == ["1", "0", "200", "", "answer 0 of"]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert rows[1][:4] == ["2", "1", "", "too_long"]


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--failed"], [2, 5]),
        (["--completed"], [1, 3, 4, 6]),
        (["--failed", "--code", "too_long"], [2]),
        (["--status", "200", "--after", "3"], [4, 6]),
        (["--limit", "2"], [1, 2]),
        (["--code", "unknown"], []),
    ],
)
def test_options_select_lines(service: Service, batch_id: str, options: list[str], numbers: list[int]) -> None:
    assert [line["number"] for line in listed(service, batch_id, *options)] == numbers


def test_what_is_left_is_named_on_standard_error(service: Service, batch_id: str) -> None:
    assert "--after 4" in service.run("batch", "lines", batch_id, "--limit", "4").stderr
    assert service.run("batch", "lines", batch_id).stderr == ""


def test_more_lines_than_a_page_has_are_several_pages(
    service: Service, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("features.lines.commands._PAGE", 2)
    assert [line["number"] for line in listed(service, batch_id, "--limit", "5")] == [1, 2, 3, 4, 5]


def test_one_line_is_shown_beside_its_request(service: Service, batch_id: str) -> None:
    line = json.loads(service.run("batch", "lines", batch_id, "--number", "3", "--json").stdout)
    assert line["request"]["body"]["prompt"] == "Why?"
    assert line["result"]["response"]["body"]["choices"][0]["text"] == "answer 2\tof\n"
    shown = service.run("batch", "lines", batch_id, "--number", "3").stdout
    assert '"prompt": "Why?"' in shown
    with pytest.raises(InputError, match="--failed and --grep"):
        service.run("batch", "lines", batch_id, "--number", "3", "--failed", "--grep", "x")
    for limit in ("1", "50"):
        with pytest.raises(InputError, match="--limit"):
            service.run("batch", "lines", batch_id, "--number", "3", "--limit", limit)
    with pytest.raises(InputError, match="--after"):
        service.run("batch", "lines", batch_id, "--number", "3", "--after", "0")


def test_a_search_prints_hits_as_rows_or_objects(service: Service, batch_id: str) -> None:
    printed = service.run("batch", "lines", batch_id, "--grep", "answer", "--limit", "3")
    assert [line.split("\t")[0] for line in printed.stdout.splitlines()] == ["number", "1", "3", "4"]
    assert "--after 5" in printed.stderr
    found = service.run("batch", "lines", batch_id, "--grep", "\tof\n", "--after", "4", "--json").stdout
    assert [json.loads(line)["number"] for line in found.splitlines()] == [6]


def test_an_unknown_batch_is_one_sentence(service: Service) -> None:
    for options in ([], ["--grep", "x"], ["--number", "1"]):
        with pytest.raises(InputError, match="No batch found"):
            service.run("batch", "lines", "batch_unknown", *options)
