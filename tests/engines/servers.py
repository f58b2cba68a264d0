"""Real servers of `scripts/real-engines`, each for one model, stopped at the end."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from lab.own_stack import free_port

ROOT = Path(__file__).resolve().parents[2]
_READY_SECONDS = 900.0
_VARIABLES = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # it would compile each new shape, for a minute and a half
}
"""A server of one request at a time more or less: small, offline, and as quick to start as can be."""


def installed_python(name: str) -> Path:
    """Return the Python of an installed server; skip the test where there is none."""
    python = Path(os.environ.get("REAL_ENGINES", ROOT / ".engines")) / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {name} in {python.parents[1]}; run `bash scripts/real-engines`")
    return python


@contextmanager
def vllm_server(model: Path, *options: str, name: str, log: Path) -> Iterator[str]:
    """Yield the URL of a vLLM that serves a folder as `name`.

    TOKENMILL_ENGINE_<NAME> names one that runs already.
    """
    running = os.environ.get(f"TOKENMILL_ENGINE_{name.upper()}")
    if running is not None:
        yield running
        return
    python, port = installed_python("vllm"), free_port()
    words = ("--model", str(model), "--served-model-name", name, "--host", "127.0.0.1", "--port", str(port))
    command = (str(python), "-m", "vllm.entrypoints.openai.api_server", *words, "--enforce-eager", *options)
    with _running(command, port, log):
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def llama_server(model: Path, *, slots: int, context: int, log: Path) -> Iterator[str]:
    """Yield the URL of a llama-server that serves a GGUF file as `served`."""
    python, port = installed_python("llama"), free_port()
    script = Path(__file__).with_name("serve_llama.py")
    with _running((str(python), str(script), str(model), str(port), str(slots), str(context)), port, log):
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def _running(command: Sequence[str], port: int, log: Path) -> Iterator[None]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | _VARIABLES
    with log.open("wb") as written:
        process = subprocess.Popen(command, cwd=log.parent, env=environment, stdout=written, stderr=subprocess.STDOUT)
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log)
        yield
    finally:
        process.terminate()
        process.wait(60)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url, timeout=5, trust_env=False).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"the server is not ready; the end of its log:\n{log.read_text(errors='replace')[-3000:]}")
