"""What `tokenmill run` remembers between two starts of the same command, in a folder of its own per run."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from cli.data_dir import write_secret
from cli.disk.input_file import opened
from jobs.errors import InputError

_STATE = "state.json"
_MAX_NAMES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class InputScan:
    """One pass over an input file: its identity, and what its lines ask for."""

    sha256: str
    num_lines: int
    models: tuple[str, ...]  # names in the order they appear, each once, at most 20
    endpoint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """How far a run has come."""

    file_id: str | None = None
    batch_id: str | None = None
    attempt: int = 0
    """Batches that ended without an output."""
    outputs: dict[str, str] | None = None
    """Each path that was written, with its sha256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Everything of one run: the state file and, while it is unfinished, the data directory of its stack."""

    key: str
    root: Path

    @property
    def stack(self) -> Path:
        return self.root / "stack"

    def read(self) -> RunState:
        """Return the noted state; a new run has an empty one."""
        try:
            noted = json.loads((self.root / _STATE).read_bytes())
        except FileNotFoundError:
            return RunState()
        return RunState(**noted)

    def write(self, state: RunState) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        write_secret(self.root / _STATE, json.dumps(asdict(state)))

    def forget_stack(self) -> None:
        """Free the disk once the output is written: the results are in it."""
        shutil.rmtree(self.stack, ignore_errors=True)


def run_folder(base: Path, *, scan: InputScan, model: str, output: Path) -> RunFolder:
    """Return the folder of the run that computes this input with this model into this output."""
    identity = "\n".join((scan.sha256, model, str(output.absolute())))
    key = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:24]
    return RunFolder(key=key, root=base.expanduser().absolute() / "runs" / key)


def scan_input(path: Path) -> InputScan:
    """Read the whole file once, with memory that does not grow. Bad lines are left to validation.

    Raises InputError where it cannot be read or holds no line.
    """
    digest = hashlib.sha256()
    num_lines = 0
    models: dict[str, None] = {}
    endpoint = ""
    for raw in _lines(path, digest):
        if not raw.strip():
            continue
        num_lines += 1
        line = _parsed(raw)
        body = line.get("body")
        name = body.get("model") if isinstance(body, dict) else None
        if isinstance(name, str) and len(models) < _MAX_NAMES:
            models[name] = None
        endpoint = endpoint or str(line.get("url") or "")
    if num_lines == 0:
        raise InputError(f"{path} holds no requests. Give one JSON object per line.")
    return InputScan(
        sha256=digest.hexdigest(),
        num_lines=num_lines,
        models=tuple(models),
        endpoint=endpoint or "/v1/chat/completions",
    )


def outputs_are_intact(state: RunState) -> bool:
    """Tell whether every file the run wrote is still there, unchanged."""
    if not state.outputs:
        return False
    return all(Path(path).is_file() and sha256_of(Path(path)) == expected for path, expected in state.outputs.items())


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lines(path: Path, digest: hashlib._Hash) -> Iterator[bytes]:
    with opened(path) as file:
        for line in file:
            digest.update(line)
            yield line


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        line = orjson.loads(raw.removeprefix(b"\xef\xbb\xbf"))
    except orjson.JSONDecodeError:
        return {}
    return line if isinstance(line, dict) else {}
