"""Tests of commands and their outputs on errors: one sentence that names the cause, and a status.

Tables of what once ended in a traceback.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.embedded.sockets import free_port
from jobs.errors import InputError
from tests.cli.service import ROOT, clean_environment, run, typed
from tests.engine.gguf.builders import StoredTensor, Written

pytestmark = pytest.mark.long

LONG = "x" * 300
REMARKS = ("tokenmill: starting", "[transformers]")
"""Text before the sentence: progress, and what a library says of a configuration."""


def a_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("no cluster\n")


def a_folder(path: Path) -> None:
    path.mkdir(parents=True)


def a_dead_link(path: Path) -> None:
    path.symlink_to("/no/such/place")


UP = [
    ("postgres/notes.txt", a_file, "postgres"),
    ("postgres/PG_VERSION", a_file, "postgres/PG_VERSION"),
    ("postgres/PG_VERSION", a_folder, "postgres/PG_VERSION"),
    ("postgres", a_file, "postgres"),
    ("postgres", a_dead_link, "postgres"),
    ("valkey", a_file, "valkey"),
    ("api_key", a_folder, "api_key"),
]
BACKUP = [
    ("place", a_file, "place"),
    ("place", a_dead_link, "place"),
    ("place/objects", a_file, "place/objects"),
    ("place/database.dump", a_folder, "place/database.dump"),
    ("place/database.dump.part", a_folder, "place/database.dump.part"),
]
SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
MODELS = [
    ({"model_type": "cpmant", "dim_head": 8, "dim_ff": 96}, "max_position_embeddings"),
    ({"model_type": "roc_bert", "num_attention_heads": 6}, "roc_bert"),
    ({"model_type": "llama", "intermediate_size": 48, "rope_scaling": {"rope_type": "foo", "factor": 2.0}}, "foo"),
]
INTERRUPTED = """
import os, runpy, signal, sys
awaited = sys.argv.pop(1)
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == awaited:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # which is not there where the tests ignore it
sys.meta_path.insert(0, Interrupting())
"""
AS_SCRIPT = "from cli.main import main; main()"
AS_MODULE = "runpy.run_module('cli.main', run_name='__main__', alter_sys=True)"


def assert_one_sentence(done: subprocess.CompletedProcess[str], named: str, *, status: int) -> None:
    sentences = [line for line in done.stderr.splitlines() if not line.startswith(REMARKS)]
    assert (done.returncode, len(sentences), "Traceback" in done.stderr) == (status, 1, False), done.stderr
    assert_names(sentences[0], named)


def assert_names(sentence: str, named: str) -> None:
    assert re.search(rf"{re.escape(named)}\b", sentence), sentence


@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize(("place", "make", "named"), UP)
def test_a_folder_that_is_no_data_directory_is_refused(
    place: str, make: Callable[[Path], None], named: str, tmp_path: Path
) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    make(data_dir / place)
    given = ("--data-dir", data_dir, "--port", str(free_port()), "--workers", "0")
    model = ("--model", ROOT / "examples" / "demo_model")
    assert_one_sentence(typed("up", *given, *model, variables={}), str(data_dir / named), status=2)
    assert (data_dir / place).exists() or (data_dir / place).is_symlink()


@pytest.mark.parametrize(("place", "make", "named"), BACKUP)
def test_a_place_that_cannot_have_a_backup_is_refused(
    place: str, make: Callable[[Path], None], named: str, tmp_path: Path, database_url: str
) -> None:
    make(tmp_path / place)
    assert_names(refusal("backup", tmp_path / "place", database_url, tmp_path), str(tmp_path / named))


@pytest.mark.parametrize("place", ["/proc/nowhere", "/dev/null", "/dev/null/below", f"/tmp/{LONG}"])
@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_place_where_no_folder_can_be_is_refused(command: str, place: str, database_url: str, tmp_path: Path) -> None:
    assert_names(refusal(command, Path(place), database_url, tmp_path), place)


def refusal(command: str, place: Path, database_url: str, tmp_path: Path) -> str:
    """Return the sentence with which the command ends with status 2."""
    variables = {"TOKENMILL_DATABASE_URL": database_url, "TOKENMILL_STORAGE_URL": (tmp_path / "store").as_uri()}
    with pytest.raises(InputError) as caught:
        run("db", command, place, **variables)
    return caught.value.message


@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize(("config", "named"), MODELS)
def test_a_model_that_the_engine_does_not_run_is_refused(config: dict[str, object], named: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({**SIZES, **config}))
    assert_one_sentence(bench(tmp_path / "model", tmp_path), named, status=1)


@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize("kind", ["NVFP4", "Q1_0"])
def test_a_gguf_file_of_a_type_that_is_not_read_is_refused(kind: str, tmp_path: Path) -> None:
    written = Written(metadata={"general.architecture": "llama"})
    written.tensors["token_embd.weight"] = StoredTensor(kind=kind, shape=(64, 4), data=bytes(256))
    assert_one_sentence(bench(written.to(tmp_path / "x.gguf"), tmp_path), kind, status=1)


def bench(model: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    workload = folder / "workload.jsonl"
    workload.write_text(json.dumps({"prompt_token_ids": [1, 2, 3], "max_tokens": 2}) + "\n")
    return typed("bench", "throughput", "--model", model, "--workload", workload, variables={})


@pytest.mark.parametrize("how", [AS_SCRIPT, AS_MODULE])
@pytest.mark.parametrize("module", ["cli.app", "typer", "jobs.telemetry.logs", "openai", "httpx2"])
def test_ctrl_c_while_modules_load_is_one_line(how: str, module: str) -> None:
    variables = {"TOKENMILL_BASE_URL": "http://127.0.0.1:1/v1", "TOKENMILL_API_KEY": "tm-none"}
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED + how, module, "batch", "list"],
        capture_output=True, text=True, check=False, timeout=120, env=clean_environment(**variables),
    )  # fmt: skip
    assert done.stderr == "tokenmill: interrupted\n"
    # Python ends by the signal itself if it interrupted code compiled from text; a shell reports both as 130.
    assert done.returncode in (130, -2)


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    ignoring = INTERRUPTED.replace("signal.default_int_handler", "signal.SIG_IGN")
    done = subprocess.run(
        [sys.executable, "-c", ignoring + AS_SCRIPT, "typer", "--version"],
        capture_output=True, text=True, check=False, timeout=120, env=clean_environment(),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
