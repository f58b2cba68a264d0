"""Tests of `tokenmill map` against a server, from table to table, and of refusals before any request."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from jobs.chunks.recording import LineResult
from jobs.errors import InputError
from jobs.lines.output_lines import output_line
from tests.cli.killed import kill, wait_for
from tests.cli.service import ROOT, Service, chatted, failed, run

pytestmark = pytest.mark.long

MAX_FILE_BYTES = 1 << 20
SMALL_FILES = ("bash", "-c", f'ulimit -f {MAX_FILE_BYTES >> 10}; exec "$@"', "bash")
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
    return chatted(line_no, f"row-{row}", content)


def refused(line_no: int, row: int) -> LineResult:
    return failed(line_no, f"row-{row}", code="engine_failure")


def unsupported(line_no: int, row: int, *, said: str) -> LineResult:
    body = {"error": {"code": "unsupported_structure", "message": said}}
    line = output_line("batch", line_no, f"row-{row}", status_code=400, body=body)
    return LineResult(line_no=line_no, line=line, status_code=400)


RESULTS = [answered(0, 1, '{"label": "fine", "stars": 5}'), answered(1, 3, '{"label": "hm"}'), refused(2, 4)]


def started(
    service: Service, folder: Path, *more: str, output: str = "out.parquet", before: Sequence[str] = ()
) -> subprocess.Popen[str]:
    return service.start(*arguments(folder, *more, output=output), before=before)


@pytest.mark.usefixtures("quick_processes")
def test_a_table_comes_back_with_its_answers_after_a_kill_too(service: Service, folder: Path) -> None:
    before = len(service.batches())
    with started(service, folder) as process:
        wait_for(lambda: len(service.batches()) > before, process)
        kill(process)
    batch = service.batches()[0]
    service.work_off(batch["id"], RESULTS)
    with started(service, folder, "--fail-on-errors", "--keep") as process:
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 3
    assert f"kept: {batch['id']}, {batch['input_file_id']}" in said
    assert "2 of 4 rows answered, written to" in said
    assert "2 failed, see the column error: engine_failure 1, unrendered 1" in said
    assert len(service.batches()) == before + 1
    table = pq.read_table(folder / "out.parquet")
    assert [str(kind) for kind in table.schema.types] == ["string", "string", "string", "int64", "string"]
    rows = table.to_pylist()
    assert [row["id"] for row in rows] == ["7", "8", "9", "10"]
    assert [(row["label"], row["stars"]) for row in rows] == [("fine", 5), (None, None), ("hm", None), (None, None)]
    assert [row["error"] for row in rows][::2] == [None, None]
    assert rows[1]["error"].startswith("line 4, column ")
    assert rows[3]["error"] == "it went wrong (engine_failure)"
    assert [path.name for path in folder.glob("d/runs/*/*")] == ["state.json"]
    for more, status in (((), 0), (("--fail-on-errors",), 3)):
        again = service.run(*arguments(folder, *more))
        assert (again.exit_code, "is already complete" in again.stderr) == (status, True)
        assert "2 failed, see the column error: engine_failure 1, unrendered 1" in again.stderr
    service.run("files", "download", batch["input_file_id"], "-o", folder / "sent.jsonl")
    body = json.loads((folder / "sent.jsonl").read_text().splitlines()[0])["body"]
    assert body["messages"] == [{"role": "system", "content": "Rate."}, {"role": "user", "content": "GOOD"}]
    assert body["response_format"]["json_schema"]["schema"] == SCHEMA


@pytest.mark.usefixtures("quick_processes")
def test_a_batch_that_was_cancelled_leaves_its_results_and_the_rest_runs_again(service: Service, folder: Path) -> None:
    before = len(service.batches())
    with started(service, folder) as process:
        wait_for(lambda: len(service.batches()) > before, process)
        first = service.batches()[0]["id"]
        too_long = failed(2, "row-4", code="context_length_exceeded", batch_id=first)
        service.cancel(first, [RESULTS[0], too_long])
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert "the batch ended as cancelled. Answers of 1 line are kept; the same command submits the others." in said
    with started(service, folder, "--keep") as process:
        wait_for(lambda: len(service.batches()) > before + 1, process)
        second = service.batches()[0]
        service.work_off(second["id"], [answered(0, 3, '{"label": "later"}')])
        said = process.communicate(timeout=120)[1]
    assert (process.returncode, f"1 line with answers from {first}; {second['id']} runs" in said) == (0, True)
    rows = pq.read_table(folder / "out.parquet").to_pylist()
    assert [row["label"] for row in rows] == ["fine", None, "later", None]
    assert rows[3]["error"] == "it went wrong (context_length_exceeded)"
    service.run("files", "download", second["input_file_id"], "-o", folder / "sent.jsonl")
    assert [json.loads(line)["custom_id"] for line in (folder / "sent.jsonl").read_text().splitlines()] == ["row-3"]
    assert [path.name for path in folder.glob("d/runs/*/*")] == ["state.json"]


@pytest.mark.usefixtures("quick_processes")
def test_a_schema_that_the_server_cannot_keep_is_each_rows_error(service: Service, folder: Path) -> None:
    before = len(service.batches())
    said = "the keyword is not supported"
    with started(service, folder, output="out.jsonl") as process:
        wait_for(lambda: len(service.batches()) > before, process)
        results = [unsupported(line_no, row, said=said) for line_no, row in enumerate((1, 3, 4))]
        service.work_off(service.batches()[0]["id"], results)
        process.communicate(timeout=120)
    assert process.returncode == 1
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert [row["error"] for row in rows if row["id"] != "8"] == [f"{said} (unsupported_structure)"] * 3


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
def test_a_disk_that_is_full_at_the_end_costs_nothing_that_was_computed(
    service: Service, folder: Path, output: str
) -> None:
    """Only full enough to fail for the output, whose rows are larger than their prompts."""
    noise = Random(1).randbytes(MAX_FILE_BYTES).hex()
    (folder / "in.csv").write_text(f"text,pad\ngood,{noise}\n")
    before = len(service.batches())
    with started(service, folder, output=output, before=SMALL_FILES) as process:
        wait_for(lambda: len(service.batches()) > before, process)
        service.work_off(service.batches()[0]["id"], RESULTS[:1])
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert said.splitlines()[-1] == (
        f"tokenmill: File too large: {folder / output}. Free space or grant access, then try again."
    )
    assert "Traceback" not in said
    assert sorted(path.name for path in folder.iterdir()) == ["d", "in.csv", "out.json", "prompt.j2"]
    again = service.run(*arguments(folder, output=output))
    assert (again.exit_code, "1 of 1 row answered" in again.stderr) == (0, True)
    assert len(service.batches()) == before, "it was found again, and deleted"
    assert (folder / output).stat().st_size > MAX_FILE_BYTES


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv"])
@pytest.mark.usefixtures("quick_processes")
def test_another_output_of_another_prompt_is_another_run(service: Service, folder: Path, output: str) -> None:
    (folder / "prompt.j2").write_text("{{ text }}")
    before = len(service.batches())
    with started(service, folder, "--prefix", "a_", "--param", "top_p=0.5", output=output) as process:
        wait_for(lambda: len(service.batches()) > before, process)
        results = [answered(number, number + 1, '{"label": "x"}') for number in range(4)]
        service.work_off(service.batches()[0]["id"], results)
        said = process.communicate(timeout=120)[1]
    assert process.returncode == 0, said
    if output == "out.csv":
        assert (folder / output).read_text().splitlines()[:2] == ["id,text,a_label,a_stars,a_error", "7,good,x,,"]
    else:
        first = json.loads((folder / output).read_text().splitlines()[0])
        assert first == {"id": "7", "text": "good", "a_label": "x", "a_stars": None, "a_error": None}


def test_a_dry_run_shows_the_first_prompts_and_what_all_would_take(service: Service, folder: Path) -> None:
    service.worker_lives()
    before = (len(service.batches()), service.run("files", "list").stdout)
    with service.counting(tokens=7):
        result = service.run(*arguments(folder, "--dry-run"))
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(
        "--- row 1\n# system:\nRate.\n# user:\nGOOD\n\n--- row 2: no prompt: line 4, column"
    )
    assert "--- row 3\n# system:\nRate.\n# user:\nSO, SO\n" in result.stdout
    fields = dict(line.split(None, 1) for line in result.stdout.splitlines() if line[:1].isalpha() and " " in line)
    assert (fields["rows"], fields["unrendered"], fields["lines"], fields["model"]) == ("4", "1", "3", "tiny")
    assert (len(service.batches()), service.run("files", "list").stdout) == before
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
        ("out.json", "{", "out.json: line 1, column 2: it is not JSON"),
        ("out.json", '{"type": "array"}', "out.json: the schema cannot be used: at $, "),
        ("out.json", '{"properties": {"a": {}}}', "out.json: the schema is too wide for Parquet"),
        (
            "out.json",
            '{"properties": {"id": {"type": "string"}}}',
            "already has the column id, which the answers would",
        ),
        ("in.csv", "id,text\n1\n", "in.csv, row 1 (line 2): it has 1 fields and the header 2"),
        ("in.csv", "id,text\n", "in.csv has no rows"),
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
    with pytest.raises(InputError, match=r"there is no model 'other' at .* serves: tiny\. A model that is still"):
        service.run(*arguments(folder, "--model", "other"))


def test_a_schema_that_no_grammar_can_keep_is_refused_before_anything_is_started(folder: Path) -> None:
    schema = {"properties": {"label": {"type": "string", "pattern": "(?=a)b"}}, "type": "object"}
    (folder / "out.json").write_text(json.dumps(schema))
    assert "the schema cannot be enforced: " in refusal(folder, "--model", str(ROOT / "examples" / "demo_model"))
