"""What a command that can be stopped remembers between two starts, in a folder of its own per run."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cli.data_dir import write_secret
from cli.disk.file_lock import holding
from jobs.errors import ConflictError

_STATE = "state.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """How far a run has come."""

    file_id: str | None = None
    batch_id: str | None = None
    attempt: int = 0
    """Batches that ended without an output."""
    outputs: dict[str, str] | None = None
    """Each path that was written, with its sha256."""
    num_answered: int = 0
    failed: dict[str, int] | None = None
    """Of a job of several steps, once its output is written: how much failed, by code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """Everything of one run: the state file and, while it is unfinished, the data directory of its stack."""

    key: str
    root: Path

    @classmethod
    def below(cls, data_dir: Path, key: str) -> RunFolder:
        """Return the folder of the run that has this key, which says all that its results depend on."""
        return cls(key=key, root=data_dir.expanduser().absolute() / "runs" / key)

    @property
    def stack(self) -> Path:
        return self.root / "stack"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other starts of the same command out. Raises ConflictError where one runs."""
        self.root.mkdir(parents=True, exist_ok=True)
        with holding(self.root / "lock", taken=_runs_already):
            yield

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

    def note_outputs(self, written: Iterable[Path]) -> None:
        """Note files as what the run has come to."""
        noted = {str(path.absolute()): sha256_of(path) for path in written}
        self.write(replace(self.read(), outputs=noted))

    def has_written(self, outputs: Iterable[Path]) -> bool:
        """Tell whether the run has written these files, and all that it wrote is there, unchanged."""
        noted = self.read().outputs or {}
        return {str(path.absolute()) for path in outputs} <= noted.keys() and all(
            Path(path).is_file() and sha256_of(Path(path)) == expected for path, expected in noted.items()
        )

    def forget_stack(self) -> None:
        """Free the disk once the output is written: the results are in it."""
        shutil.rmtree(self.stack, ignore_errors=True)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _runs_already(pid: str) -> ConflictError:
    return ConflictError(f"the same command already runs (pid {pid}). Wait for it, or stop it and give it again.")
