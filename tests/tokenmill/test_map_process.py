"""Tests that the process of a `tokenmill.map` call ends with the call, however that ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tokenmill import mapping, tables

ROOT = Path(__file__).resolve().parents[2]
CALL = """
import sys, tokenmill
try:
    tokenmill.map([{"text": "a"}], prompt="{{ text }}", model="m", base_url=sys.argv[1], api_key="k")
except KeyboardInterrupt:
    sys.exit(9)
"""
WAIT_SECONDS = 60.0


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(WAIT_SECONDS)
        yield listening


def ends(connection: socket.socket) -> bool:
    """Wait until the other side has closed a connection, as its end does."""
    connection.settimeout(WAIT_SECONDS)
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 9), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_call_that_is_ended_leaves_neither_process_nor_table(
    server: socket.socket, number: signal.Signals, status: int, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", CALL, url]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=environment) as caller:
        connection, _ = server.accept()
        with connection:
            caller.send_signal(number)
            assert caller.wait(WAIT_SECONDS) == status
            assert ends(connection)
        assert caller.stderr is not None
        assert b"Traceback" not in caller.stderr.read()  # read to the end of both processes
    assert list(tmp_path.iterdir()) == []


def test_an_import_brings_the_errors_alone() -> None:
    script = "import sys; before = {*sys.modules}; import tokenmill; print(*sorted({*sys.modules} - before))"
    imported = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in imported.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names]
    assert names == ["tokenmill", "tokenmill.errors"]


def test_a_process_that_dies_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "command_of", lambda *_: [sys.executable, "-c", "import os; os._exit(3)"])
    with pytest.raises(tokenmill.TokenmillError, match="status 3"):
        tokenmill.map([{"text": "a" * 1_000_000}], prompt="{{ text }}" * 100_000)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("prompt", {"prompt": b"{{ text }}"}),
        ("prompt", {"prompt": None}),
        ("params", {"prompt": "p", "params": {"stop": {1}}}),
        ("params", {"prompt": "p", "temperature": float("inf")}),
        ("api_key", {"prompt": "p", "api_key": b"key"}),
    ],
)
def test_an_argument_that_cannot_be_handed_on_is_named(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(tokenmill.InputError) as caught:
        tokenmill.map([{"text": "a"}], **arguments)
    assert caught.value.param == name


@pytest.mark.usefixtures("quick_processes")
def test_answers_are_kept_until_the_caller_has_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def call() -> Any:
        model = str(ROOT / "examples" / "demo_model")
        return tokenmill.map([{"text": "a"}], prompt="{{ text }}", model=model, max_tokens=2, data_dir=tmp_path)

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(tables, "read_rows", fail)
        with pytest.raises(MemoryError):
            call()
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert len(call()) == 1
    assert list((tmp_path / "runs").iterdir()) == []


def test_an_error_of_the_system_comes_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where a folder should be")
    with pytest.raises(NotADirectoryError) as caught:
        tokenmill.map(
            [{"text": "a"}], prompt="{{ text }}", model=str(ROOT / "examples" / "demo_model"), data_dir=tmp_path
        )
    assert Path(caught.value.filename).parent == tmp_path / "runs"


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hidden = "import sys\nif 'cli.mapping.child' in sys.argv: sys.modules['sqlalchemy'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hidden.replace("argv", "orig_argv"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with pytest.raises(tokenmill.TokenmillError, match=r"tokenmill\[server\]"):
        tokenmill.map(
            [{"text": "a"}], prompt="{{ text }}", model=str(ROOT / "examples" / "demo_model"), data_dir=tmp_path
        )
