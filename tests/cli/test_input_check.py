"""Tests of inputs that `tokenmill run` refuses before it loads a model, as the server would."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.disk.input_check import require_valid
from jobs.errors import InputError

COMPLETIONS = "/v1/completions"


def line(custom_id: str, *, model: str = "m", url: str = COMPLETIONS) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": model, "prompt": "x"}})


def write(folder: Path, *lines: str) -> Path:
    path = folder / "in.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_a_file_of_good_lines_passes(tmp_path: Path) -> None:
    require_valid(write(tmp_path, line("a"), "", line("b")), endpoint=COMPLETIONS, model="m")


def test_every_bad_line_is_listed_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path, line("a"), "[]", line("a"), line("c", model="other"))
    with pytest.raises(InputError) as refusal:
        require_valid(path, endpoint=COMPLETIONS, model="m")
    first, *listed = refusal.value.message.splitlines()
    assert first == f"{path} fails validation, bad lines: 3 of 4:"
    assert [problem.split(":")[0] for problem in listed] == ["  line 2", "  line 3", "  line 4"]
    assert 'the model "other" does not exist; known are: m (model_not_found)' in listed[2]


def test_a_file_with_too_many_lines_is_refused_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_MAX_BATCH_LINES", "1")
    with pytest.raises(InputError, match=r"has 2 requests and 1 are allowed; split it \(too_many_tasks\)"):
        require_valid(write(tmp_path, line("a"), line("b")), endpoint=COMPLETIONS, model="m")


def test_an_endpoint_that_is_not_offered_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Invalid endpoint: '/v1/moderations'"):
        require_valid(write(tmp_path, line("a", url="/v1/moderations")), endpoint="/v1/moderations", model="m")


@pytest.mark.parametrize("indent", [None, 1], ids=["one line", "many lines"])
def test_an_array_in_place_of_lines_is_one_problem(tmp_path: Path, indent: int | None) -> None:
    content = json.dumps([json.loads(line(name)) for name in "abc"], indent=indent)
    with pytest.raises(InputError) as refusal:
        require_valid(write(tmp_path, content), endpoint=COMPLETIONS, model="m")
    assert refusal.value.message.count("invalid_json_line") == 1
    assert "jq -c '.[]'" in refusal.value.message
