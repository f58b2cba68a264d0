"""The state of a resumable command between starts, in a folder per run."""

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
    """The progress of a run."""

    file_id: str | None = None
    batch_id: str | None = None
    attempt: int = 0
    """Number of batches that did not complete."""
    outputs: dict[str, str] | None = None
    """Each written path with its sha256."""
    num_answered: int = 0
    failed: dict[str, int] | None = None
    """Failures by code, once the output of a job with several stages is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """The folder of a run: the state file and, until it is finished, the data directory of its stack."""

    key: str
    root: Path

    @classmethod
    def below(cls, data_dir: Path, key: str) -> RunFolder:
        """Return the folder of the run with this key, a digest of all that its results depend on."""
        return cls(key=key, root=data_dir.expanduser().absolute() / "runs" / key)

    @property
    def stack(self) -> Path:
        return self.root / "stack"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the run against other starts of the same command. Raises ConflictError if one runs."""
        self.root.mkdir(parents=True, exist_ok=True)
        with holding(self.root / "lock", taken=_runs_already):
            yield

    def read(self) -> RunState:
        """Return the stored state; that of a new run is empty."""
        try:
            state = json.loads((self.root / _STATE).read_bytes())
        except FileNotFoundError:
            return RunState()
        return RunState(**state)

    def write(self, state: RunState) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        write_secret(self.root / _STATE, json.dumps(asdict(state)))

    def note_outputs(self, written: Iterable[Path]) -> None:
        """Store the written files as the outputs of the run."""
        outputs = {str(path.absolute()): sha256_of(path) for path in written}
        self.write(replace(self.read(), outputs=outputs))

    def has_written(self, outputs: Iterable[Path]) -> bool:
        """Return whether the run has written these files, and all files that it wrote are unchanged."""
        written = self.read().outputs or {}
        return {str(path.absolute()) for path in outputs} <= written.keys() and all(
            Path(path).is_file() and sha256_of(Path(path)) == expected for path, expected in written.items()
        )

    def forget_stack(self) -> None:
        """Delete the stack's data once the output is written."""
        shutil.rmtree(self.stack, ignore_errors=True)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _runs_already(pid: str) -> ConflictError:
    return ConflictError(
        f"the same command already runs (pid {pid}). Wait for it, or stop it and run the command again."
    )
