"""`tokenmill map` against a server, from table to table; what is refused before anything is asked of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jobs.chunks.recording import LineResult
from jobs.errors import InputError
from jobs.lines.output_lines import error_line, output_line
from tests.cli.service import ROOT, Service, clean_environment, run

pytestmark = pytest.mark.long

SCHEMA = {"type": "object", "properties": {"label": {"type": "string"}, "stars": {"type": "integer"}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a table of four rows, a prompt and a schema."""
    (tmp_path / "in.csv").write_text('id,text\n7,good\n8,bad\n9,"so, so"\n10,dull\n')
    (tmp_path / "prompt.j2").write_text("# system:\nRate.\n# user:\n{{ text|upper }}{{ [][0] if text == 'bad' }}\n")
    (tmp_path / "out.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def arguments(folder: Path, *more: str, output: str = "out.parquet") -> list[str]:
    named = [
        "--prompt",
        str(folder / "prompt.j2"),
        "--schema",
        str(folder / "out.json"),
        "--data-dir",
        str(folder / "d"),
    ]
    return ["map", str(folder / "in.csv"), "-o", str(folder / output), *named, *more]


def answered(line_no: int, row: int, content: str) -> LineResult:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    line = output_line("batch", line_no, f"row-{row}", status_code=200, body={"choices": [choice]})
    return LineResult(line_no=line_no, line=line, status_code=200, input_tokens=2, output_tokens=3)


def refused(line_no: int, row: int) -> LineResult:
    line = error_line("batch", line_no, f"row-{row}", code="engine_failure", message="it went wrong")
    return LineResult(line_no=line_no, line=line, status_code=None)


RESULTS = [answered(0, 1, '{"label": "fine", "stars": 5}'), answered(1, 3, '{"label": "hm"}'), refused(2, 4)]


def started(service: Service, folder: Path, *more: str, output: str = "out.parquet") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cli.main", *arguments(folder, *more, output=output)]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment(**service.variables)
    )


def batches(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(service.run("batch", "list", "--json").stdout)
    return found


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_table_comes_back_with_its_answers_after_a_kill_too(service: Service, folder: Path) -> None:
    before = len(batches(service))
    with started(service, folder) as process:
        wait_for(lambda: len(batches(service)) > before, process)
        process.kill()
    batch = batches(service)[0]
    service.work_off(batch["id"], RESULTS)
    with started(service, folder, "--fail-on-errors") as process:
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 3
    assert "2 of 4 rows answered, written to" in said
    assert "2 failed, see the column error: engine_failure 1, unrendered 1" in said
    assert len(batches(service)) == before + 1
    table = pq.read_table(folder / "out.parquet")
    assert [str(kind) for kind in table.schema.types] == ["string", "string", "string", "int64", "string"]
    rows = table.to_pylist()
    assert [row["id"] for row in rows] == ["7", "8", "9", "10"]
    assert [(row["label"], row["stars"]) for row in rows] == [("fine", 5), (None, None), ("hm", None), (None, None)]
    assert [row["error"] for row in rows][::2] == [None, None]
    assert rows[1]["error"].startswith("line 4, column ")
    assert rows[3]["error"] == "it went wrong (engine_failure)"
    assert [path.name for path in folder.glob("d/runs/*/*")] == ["state.json"]
    again = service.run(*arguments(folder))
    assert (again.exit_code, "is already complete" in again.stderr) == (0, True)
    service.run("files", "download", batch["input_file_id"], "-o", folder / "sent.jsonl")
    body = json.loads((folder / "sent.jsonl").read_text().splitlines()[0])["body"]
    assert body["messages"] == [{"role": "system", "content": "Rate."}, {"role": "user", "content": "GOOD"}]
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv"])
def test_another_output_of_another_prompt_is_another_run(service: Service, folder: Path, output: str) -> None:
    (folder / "prompt.j2").write_text("{{ text }}")
    before = len(batches(service))
    with started(service, folder, "--prefix", "a_", "--param", "top_p=0.5", output=output) as process:
        wait_for(lambda: len(batches(service)) > before, process)
        results = [answered(number, number + 1, '{"label": "x"}') for number in range(4)]
        service.work_off(batches(service)[0]["id"], results)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 0, said
    if output == "out.csv":
        assert (folder / output).read_text().splitlines()[:2] == ["id,text,a_label,a_stars,a_error", "7,good,x,,"]
    else:
        first = json.loads((folder / output).read_text().splitlines()[0])
        assert first == {"id": "7", "text": "good", "a_label": "x", "a_stars": None, "a_error": None}


def test_a_dry_run_shows_the_first_prompts_and_what_all_would_take(service: Service, folder: Path) -> None:
    service.worker_lives()
    before = (len(batches(service)), service.run("files", "list").stdout)
    result = service.run(*arguments(folder, "--dry-run"))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(
        "--- row 1\n# system:\nRate.\n# user:\nGOOD\n\n--- row 2: no prompt: line 4, column"
    )
    assert "--- row 3\n# system:\nRate.\n# user:\nSO, SO\n" in result.stdout
    fields = dict(line.split(None, 1) for line in result.stdout.splitlines() if line[:1].isalpha() and " " in line)
    assert (fields["rows"], fields["unrendered"], fields["lines"], fields["model"]) == ("4", "1", "3", "tiny")
    assert (len(batches(service)), service.run("files", "list").stdout) == before
    assert not (folder / "d").exists()


def refusal(folder: Path, *more: str, output: str = "out.parquet") -> str:
    with pytest.raises(InputError) as caught:
        run(*arguments(folder, *more, output=output), TOKENMILL_BASE_URL="")
    assert not (folder / "d").exists()
    return caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("prompt.j2", "{{ 'a' * 9 }}", "prompt.j2: line 1, column 8: `*` with a text or a list repeats it"),
        ("prompt.j2", "{{ words }}", "prompt.j2: the prompt takes {{ words }}, and the source has no such column"),
        ("prompt.j2", "\n{{ text|nope }}", "prompt.j2: line 2, column 9: there is no filter 'nope' here. Allowed are"),
        ("out.json", "{", "out.json: line 1, column 2: it is no JSON"),
        ("out.json", '{"type": "array"}', "out.json: the schema cannot be used: at $, "),
        ("out.json", '{"properties": {"a": {}}}', "out.json: the schema is too wide for Parquet"),
        (
            "out.json",
            '{"properties": {"id": {"type": "string"}}}',
            "already has the column id, which the answers would",
        ),
        ("in.csv", "id,text\n1\n", "in.csv, row 1 (line 2): it has 1 fields and the header 2"),
        ("in.csv", "id,text\n", "in.csv holds no rows"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(folder: Path, name: str, content: str, said: str) -> None:
    (folder / name).write_text(content)
    model = ("--model", str(ROOT / "examples" / "demo_model"))
    with pytest.raises(InputError) as caught:
        run(*arguments(folder, *model), TOKENMILL_BASE_URL="")
    assert said in caught.value.message


def test_a_command_that_is_wrong_says_what_to_do(service: Service, folder: Path) -> None:
    assert "Its name must end in .jsonl, .csv or .parquet" in refusal(folder, output="out.txt")
    assert "Give it as NAME=JSON" in refusal(folder, "--param", "top_p")
    assert "come from the prompt, --model and --schema" in refusal(folder, "--param", "messages=[]")
    assert "there is no model at nowhere" in refusal(folder, "--model", "nowhere")
    with pytest.raises(InputError, match=r"there is no model 'other' at .* it serves: tiny"):
        service.run(*arguments(folder, "--model", "other"))


def test_a_schema_that_no_grammar_can_keep_is_refused_before_anything_is_started(folder: Path) -> None:
    schema = {"properties": {"label": {"type": "string", "pattern": "(?=a)b"}}, "type": "object"}
    (folder / "out.json").write_text(json.dumps(schema))
    assert "the schema cannot be kept: " in refusal(folder, "--model", str(ROOT / "examples" / "demo_model"))
