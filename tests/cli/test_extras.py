"""Tests of the plain installation, the client: its commands need no extra; others name the extra that they need."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.extras import what_to_install

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

WITHOUT_EXTRAS = """
import importlib.abc, sys
hidden = set(sys.argv.pop(1).split(","))
class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""
MAIN = "from cli.main import main; main()"
SERVER_ROLES = "import api.app, workers.control, workers.dispatcher"


def modules_of(extra: str) -> Iterator[str]:
    """Yield the module of each package of an extra that is installed here under the package's own name."""
    provided = importlib.metadata.packages_distributions()
    for requirement in EXTRAS[extra]:
        match = re.match(r"[\w.-]+", requirement)
        assert match
        module = match.group().replace("-", "_").lower()
        if module in provided:
            yield module


def run_without_extras(*arguments: str) -> subprocess.CompletedProcess[str]:
    hidden = ",".join({*modules_of("server"), *modules_of("engine")})
    return run_without(hidden, MAIN, *arguments)


def run_without(hidden: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_EXTRAS + program, hidden, *arguments]
    environment = {"TOKENMILL_BASE_URL": "http://127.0.0.1:9", "TOKENMILL_API_KEY": "k", "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("extra", ["server", "engine", "documents"])
def test_every_package_of_an_extra_is_named_when_it_is_missing(extra: str) -> None:
    for module in modules_of(extra):
        sentence = what_to_install(f"{module}.part")
        assert sentence is not None, module
        assert extra in sentence or module in ("msgspec", "numpy", "rapidfuzz", "regex", "tokenizers")  # of two extras


def test_a_missing_module_of_no_extra_is_not_explained_away() -> None:
    assert what_to_install("cli.nothing") is None
    assert what_to_install(None) is None


CREATE = ["batch", "create", "pyproject.toml"]


@pytest.mark.parametrize(
    "command",
    [
        ["batch", "list"],
        ["files", "list"],
        CREATE,
        [*CREATE, "--idempotency-key", "one"],
        [*CREATE, "--wait", "--wait-for-server", "30m"],
    ],
)
def test_the_clients_commands_need_no_extra(command: list[str]) -> None:
    outcome = run_without_extras(*command)
    assert outcome.returncode == 1
    assert "cannot reach http://127.0.0.1:9" in outcome.stderr


def test_a_file_is_checked_and_a_server_looked_at_without_an_extra(tmp_path: Path) -> None:
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(line) + "\n")
    assert "is valid" in run_without_extras("batch", "check", str(path)).stdout
    outcome = run_without_extras("status")
    assert "not installed" not in outcome.stderr
    assert "Traceback" not in outcome.stderr


@pytest.mark.parametrize(("command", "extra"), [("up", "server"), ("worker", "server"), ("api", "server")])
def test_another_command_says_what_to_install(command: str, extra: str) -> None:
    outcome = run_without_extras(command, *(["--model", "demo"] if command == "worker" else []))
    assert outcome.returncode == 1
    assert f"pip install 'tokenmill[{extra}" in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_the_roles_of_a_server_need_the_packages_of_its_extra_alone() -> None:
    others = {module for extra in ("engine", "documents", "ocr", "tables") for module in modules_of(extra)}
    outcome = run_without(",".join(others - set(modules_of("server"))), SERVER_ROLES)
    assert outcome.returncode == 0, outcome.stderr
