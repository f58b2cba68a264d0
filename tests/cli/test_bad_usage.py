"""Tests of user errors: one sentence on standard error, a status, no traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from cli.data_dir import locked
from cli.embedded.sockets import free_port

pytestmark = pytest.mark.usefixtures("quick_processes")

ROOT = Path(__file__).resolve().parents[2]
REAL_PYTHON = sys.executable
"""For what depends on the interpreter's start or end."""
SERVER = {"TOKENMILL_BASE_URL": "http://127.0.0.1:1/v1", "TOKENMILL_API_KEY": "tm-none"}


def tokenmill(*arguments: str | Path, **variables: str) -> tuple[int, str]:
    """Run the command as a user does, without Tokenmill's variables in the environment; return status and stderr."""
    return run(arguments, variables, python=sys.executable)


def run(
    arguments: Sequence[str | Path], variables: Mapping[str, str], *, python: str, stdout: int = subprocess.PIPE
) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
    done = subprocess.run(
        [python, "-m", "cli.main", *map(str, arguments)],
        stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60, cwd=ROOT,
        env={**clean, **variables},
    )  # fmt: skip
    return done.returncode, done.stderr


def assert_refused(result: tuple[int, str], sentence: str, *, status: int = 2) -> None:
    assert result == (status, f"tokenmill: {sentence}\n")


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def batch_file(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text('{"custom_id": "a", "url": "/v1/completions", "body": {"model": "local-model"}}\n')
    return path


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from cli.app import app; "
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0; "
        "print(sorted({'torch', 'transformers', 'openai', 'sqlalchemy', 'celery', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run([REAL_PYTHON, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


def test_the_version_is_told() -> None:
    done = subprocess.run(
        [REAL_PYTHON, "-m", "cli.main", "--version"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == f"tokenmill {version('tokenmill')}, Python {sys.version.split()[0]}\n"


def test_where_nothing_runs_status_and_logs_say_what_to_start(tmp_path: Path) -> None:
    assert_refused(
        tokenmill("status", "--data-dir", tmp_path),
        f"nothing runs on {tmp_path}, and TOKENMILL_BASE_URL is not set. Start `tokenmill up`, name its folder with "
        "--data-dir, or set the variables that it printed.",
    )
    assert_refused(
        tokenmill("logs", "--data-dir", tmp_path),
        f"there are no logs in {tmp_path}/logs. Start `tokenmill up`, or name its folder with --data-dir.",
    )


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_a_folder_where_nothing_runs_is_refused_also_where_a_server_is_named(command: str, tmp_path: Path) -> None:
    status, told = tokenmill(command, "--data-dir", tmp_path, **SERVER)
    assert (status, told.partition(". ")[0]) == (2, f"tokenmill: no `tokenmill up` runs on {tmp_path}")


def test_a_model_path_that_does_not_exist_is_refused() -> None:
    assert_refused(
        tokenmill("up", "--model", "/no/such/model"),
        "there is no model at /no/such/model. Give a folder that contains config.json and safetensors files, "
        "a file whose name ends in .gguf, or a Hugging Face id like org/name or org/name@revision.",
    )


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    assert_refused(
        tokenmill("up", "--model", tmp_path),
        f"{tmp_path} contains no model: config.json is missing. Give the folder that contains it.",
    )


def test_a_port_in_use_is_refused(tmp_path: Path, model: Path, listener: int) -> None:
    sentence = (
        f"cannot listen on 127.0.0.1:{listener} (Address already in use). "
        "Stop the process that uses it, or choose another port with --port."
    )
    assert_refused(
        tokenmill("up", "--model", model, "--port", str(listener), "--data-dir", tmp_path / "data"), sentence
    )
    assert_refused(tokenmill("api", "--port", str(listener)), sentence)


def test_a_data_directory_in_use_is_refused_with_its_owner(tmp_path: Path, model: Path) -> None:
    with locked(tmp_path / "data"):
        assert_refused(
            tokenmill("up", "--model", model, "--port", str(free_port()), "--data-dir", tmp_path / "data"),
            f"{tmp_path}/data is in use by another tokenmill (pid {os.getpid()}). "
            "Stop it, or choose another --data-dir.",
        )


def test_a_data_directory_that_cannot_be_made_is_refused(model: Path) -> None:
    assert_refused(
        tokenmill("up", "--model", model, "--port", str(free_port()), "--data-dir", "/dev/null/data"),
        "cannot use /dev/null/data as data directory (Not a directory). Choose another with --data-dir.",
    )


@pytest.mark.parametrize("role", [("api",), ("control",), ("dispatch",), ("worker", "--model", "m"), ("db", "upgrade")])
def test_a_database_url_of_another_kind_is_refused_by_every_role(role: tuple[str, ...]) -> None:
    status, said = tokenmill(*role, TOKENMILL_DATABASE_URL="mysql://localhost/tokenmill")
    assert status == 2
    assert said.startswith("tokenmill: TOKENMILL_DATABASE_URL is wrong: it names mysql, and only Postgres is supported")
    assert said.count("\n") == 1


def test_a_database_that_does_not_answer_is_named() -> None:
    status, said = tokenmill("db", "upgrade", TOKENMILL_DATABASE_URL="postgresql://127.0.0.1:1/tokenmill")
    assert status == 1
    assert said.startswith("tokenmill: cannot reach Postgres at 127.0.0.1:1/tokenmill")
    assert "check TOKENMILL_DATABASE_URL" in said
    assert said.count("\n") == 1


def test_without_a_database_both_ways_to_name_one_are_told(tmp_path: Path) -> None:
    assert_refused(
        tokenmill("audit", TOKENMILL_DATA_DIR=str(tmp_path)),
        f"no database is known: TOKENMILL_DATABASE_URL is not set, and no `tokenmill up` runs on {tmp_path}. "
        "Set the variable, or name another folder with --data-dir.",
    )


def test_a_setting_that_is_no_number_is_refused_by_its_variable() -> None:
    status, said = tokenmill("control", TOKENMILL_LEASE_SECONDS="soon")
    assert status == 2
    assert said.startswith("tokenmill: TOKENMILL_LEASE_SECONDS is 'soon': ")
    assert said.count("\n") == 1


def test_a_setting_of_the_stack_that_is_no_number_is_refused_too(tmp_path: Path, model: Path) -> None:
    status, said = tokenmill(
        "up", "--model", model, "--port", str(free_port()), "--data-dir", tmp_path, TOKENMILL_DRAIN_SECONDS="soon"
    )
    assert status == 2
    assert said.startswith("tokenmill: TOKENMILL_DRAIN_SECONDS is 'soon': ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("role", [("api", "--port"), ("control",)])
def test_an_object_store_that_cannot_be_made_is_named(role: tuple[str, ...], tmp_path: Path, database_url: str) -> None:
    (tmp_path / "file").write_text("in the way")
    port = [str(free_port())] if "--port" in role else []
    status, said = tokenmill(
        *role, *port, TOKENMILL_DATABASE_URL=database_url, TOKENMILL_STORAGE_URL=f"file://{tmp_path}/file/objects"
    )
    assert status == 1
    assert said.startswith(f"tokenmill: the object store file://{tmp_path}/file/objects failed: ")
    assert said.count("\n") == 1


def test_a_server_that_is_not_there_is_named() -> None:
    status, said = tokenmill("batch", "list", **SERVER)
    assert status == 1
    assert said.startswith("tokenmill: cannot reach http://127.0.0.1:1/v1/ (")
    assert said.endswith("Start the server with `tokenmill up`, or correct TOKENMILL_BASE_URL.\n")
    assert said.count("\n") == 1


def test_the_last_day_of_all_is_asked_for_like_any_other() -> None:
    status, said = tokenmill("batch", "list", "--until", "9999-12-31", **SERVER)
    assert (status, said.count("\n")) == (1, 1)
    assert said.startswith("tokenmill: cannot reach ")


@pytest.mark.parametrize(
    "beside",
    [("--by", "model"), ("--since", "2026-01-01"), ("--until", "2026-01-01"), ("--csv",), ("--spilled",)],
)
def test_what_is_wasted_has_no_period_and_no_other_groups(beside: Sequence[str]) -> None:
    status, said = tokenmill("usage", "--wasted", *beside, **SERVER)
    assert (status, said.count("\n")) == (2, 1)
    assert beside[0] in said


def test_a_folder_is_named_only_for_what_a_database_tells() -> None:
    status, said = tokenmill("usage", "--data-dir", "folder", **SERVER)
    assert (status, said.count("\n")) == (2, 1)
    assert "--wasted" in said


def test_without_a_server_the_variable_to_set_is_named() -> None:
    assert_refused(
        tokenmill("files", "list", TOKENMILL_API_KEY="tm-none"),
        "TOKENMILL_BASE_URL is not set. Set what `tokenmill up --show-key` prints, such as "
        "TOKENMILL_BASE_URL=http://127.0.0.1:8000/v1",
    )


def test_without_a_key_the_variable_to_set_is_named() -> None:
    assert_refused(
        tokenmill("files", "list", TOKENMILL_BASE_URL="http://127.0.0.1:1/v1"),
        "TOKENMILL_API_KEY is not set. Set what `tokenmill up --show-key` prints, such as TOKENMILL_API_KEY=tm-…",
    )


def test_a_server_without_a_scheme_is_refused() -> None:
    assert_refused(
        tokenmill("files", "list", TOKENMILL_BASE_URL="127.0.0.1:8000/v1", TOKENMILL_API_KEY="tm-none"),
        "TOKENMILL_BASE_URL is '127.0.0.1:8000/v1'; it must begin with http:// or https://, as "
        "http://127.0.0.1:8000/v1",
    )


def test_an_input_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.jsonl"
    sentence = f"cannot read {missing}: No such file or directory. "
    assert_refused(tokenmill("run", missing, "-o", tmp_path / "out"), f"{sentence}Give the path of a JSONL file.")
    assert_refused(tokenmill("files", "upload", missing, **SERVER), f"{sentence}Give the path of a file.")
    assert_refused(tokenmill("batch", "create", missing, **SERVER), f"{sentence}Give a JSONL file or a file id.")


def test_an_input_file_without_a_request_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "in.jsonl"
    empty.write_text("\n\n")
    assert_refused(
        tokenmill("run", empty, "-o", tmp_path / "out"), f"{empty} contains no requests. Give one JSON object per line."
    )


@pytest.mark.parametrize(
    "command", [("run", "in.jsonl"), ("files", "download", "file_1"), ("batch", "results", "batch_1")]
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_starts(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    assert_refused(
        tokenmill(*command, "-o", tmp_path / "no" / "out.jsonl", **SERVER),
        f"the folder {tmp_path}/no does not exist. Create it, or choose another output with -o.",
    )
    assert_refused(
        tokenmill(*command, "-o", tmp_path, **SERVER), f"{tmp_path} is a folder. Give the path of a file with -o."
    )


@pytest.mark.parametrize("command", [("run", "in.jsonl"), ("files", "download", "file_1")])
def test_an_output_that_is_no_ordinary_file_is_not_replaced(command: tuple[str, ...], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert_refused(
        tokenmill(*command, "-o", tmp_path / "pipe", **SERVER),
        f"{tmp_path}/pipe is not a regular file, and the output would replace it. Choose another output with -o.",
    )


def test_a_run_whose_failed_lines_could_not_be_written_is_refused_before_it_works(
    tmp_path: Path, batch_file: Path
) -> None:
    errors = tmp_path / "out.errors.jsonl"
    errors.mkdir()
    assert_refused(
        tokenmill("run", batch_file, "-o", tmp_path / "out.jsonl"),
        f"failed lines go to {errors}: {errors} is a folder. Give the path of a file with -o.",
    )


@pytest.mark.parametrize(
    ("output", "why"), [("/proc/out.jsonl", ""), ("x" * 250, "no file can be created there (File name too long). ")]
)
def test_an_output_that_no_file_can_be_made_for_is_refused_before_any_work(
    output: str, why: str, tmp_path: Path, batch_file: Path
) -> None:
    target = tmp_path / output
    status, said = tokenmill("run", batch_file, "-o", target)
    assert (status, said.count("\n")) == (2, 1)
    assert said.startswith(f"tokenmill: cannot write {target}: {why}")
    assert said.endswith("Choose another output with -o.\n")


@pytest.mark.parametrize(("given", "output"), [("in.jsonl", "in.jsonl"), ("in.errors.jsonl", "in.jsonl")])
def test_an_output_that_would_replace_the_input_is_refused(given: str, output: str, tmp_path: Path) -> None:
    (tmp_path / given).write_text("the only copy")
    assert_refused(
        tokenmill("run", tmp_path / given, "-o", tmp_path / output),
        f"{tmp_path / given} would replace the input. Choose another output with -o.",
    )
    assert (tmp_path / given).read_text() == "the only copy"


def test_a_run_needs_a_model_for_a_placeholder_name(tmp_path: Path, batch_file: Path) -> None:
    assert_refused(
        tokenmill("run", batch_file, "-o", tmp_path / "out.jsonl"),
        "the file names the model 'local-model', which is neither a folder nor a Hugging Face id. "
        "Name the model with --model.",
    )


def test_an_engine_setting_out_of_range_is_refused() -> None:
    status, said = tokenmill("worker", "--model", "m", "--dtype", "int3")
    assert (status, said.count("\n")) == (2, 1)
    assert said.startswith("tokenmill: dtype is 'int3'; it must be one of")


def test_a_workload_that_does_not_exist_is_named(model: Path) -> None:
    assert_refused(
        tokenmill("bench", "throughput", "--model", model, "--workload", "/no/workload"),
        "cannot read /no/workload: no such file. Give a JSONL workload with --workload.",
    )


def test_metadata_without_a_value_is_refused(batch_file: Path) -> None:
    assert_refused(
        tokenmill("batch", "create", batch_file, "--metadata", "team", **SERVER),
        "--metadata is 'team'. Give it as KEY=VALUE.",
    )


def test_a_full_disk_behind_the_output_is_one_sentence(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        status, said = run(["--help"], {}, python=REAL_PYTHON, stdout=full.fileno())
    assert status == 1
    assert said == "tokenmill: No space left on device: the output. Free space or grant access, then try again.\n"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("batch", "create", "in.jsonl", "--priority", "fast"), "'fast' is not one of 'urgent', 'normal', 'bulk'."),
        (("batch", "list", "--limit", "x"), "'x' is given; it must be a valid integer"),
        (("up", "--port", "99999"), "'99999' is given; it must be less than or equal to 65535"),
        (("batch", "list", "--limt", "3"), "No such option: --limt"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_named_with_what_it_can(given: Sequence[str], said: str) -> None:
    status, told = tokenmill(*given)
    assert status == 2
    assert f"Error: Invalid value for '{given[-2]}': {said}\n" in told or f"Error: {said}" in told


def test_an_unknown_command_names_the_usage() -> None:
    status, said = tokenmill("uo")
    assert status == 2
    assert "No such command 'uo'" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", [("batch", "watch"), ("batch", "results"), ("files", "delete")])
def test_an_id_that_a_script_has_lost_is_refused(command: Sequence[str]) -> None:
    status, told = tokenmill(*command, "", **SERVER)
    assert status == 2
    assert "it is empty; give the id that the server returned" in told
    assert "Traceback" not in told


def test_extract_is_shown_under_the_name_that_it_is_called_by() -> None:
    status, said = run(("extract", "a.pdf"), {"COLUMNS": "80"}, python=REAL_PYTHON)
    assert status == 2
    assert "cli.main extract run [OPTIONS] {DOCS}...\n" in said
    assert "cli.main extract run --help' for help.\n" in said
