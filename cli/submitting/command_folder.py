"""What a resumable command notes between starts: its outputs, and what is still stored for it.

The work itself is at the service, which finds it by the command's key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from cli.data_dir import write_secret
from cli.disk.file_lock import holding
from jobs.errors import ConflictError, InputError

_STATE, _LOCK = "state.json", "lock"
_OF_EARLIER = (
    *("stack", "input.jsonl", "answers.jsonl", "kept.jsonl", "latest.jsonl", "rest.jsonl"),
    *("context.json", "documents.jsonl"),
)
"""Names in the folder of a version that ran the work there, with a service of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandState:
    """The note of a command."""

    window: str | None = None
    """The completion window of its first batch; None if nothing is at the service."""
    outputs: dict[str, str] | None = None
    """Each written path with its sha256."""
    stored: list[str] = field(default_factory=list)
    """Ids of batches and files that are deleted next, as the outputs are written."""
    num_answered: int = 0
    failed: dict[str, int] | None = None
    """Failures by code, for a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFolder:
    """The folder of a command with its input, options and output."""

    key: str
    root: Path

    @classmethod
    def below(cls, data_dir: Path, key: str) -> CommandFolder:
        """Return the folder of the command with this key, a digest of all that its results depend on."""
        return cls(key=key, root=data_dir.expanduser().absolute() / "runs" / key)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder against other starts of the same command.

        Raises ConflictError if one runs, InputError if an earlier version has left unfinished work here.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            with holding(self.root / _LOCK, taken=_runs_already):
                self._require_own_form()
                yield
        finally:
            with suppress(OSError):  # unless there is a state
                self.root.rmdir()

    @property
    def is_begun(self) -> bool:
        """Return whether an earlier start has sent lines, or has ended."""
        state = self.read()
        return state.window is not None or state.outputs is not None

    def read(self) -> CommandState:
        """Return the stored state; that of a new command is empty."""
        state = self._json()
        return CommandState(**{each.name: state[each.name] for each in fields(CommandState) if each.name in state})

    def write(self, state: CommandState) -> None:
        write_secret(self.root / _STATE, json.dumps(asdict(state)))

    def note_outputs(
        self,
        written: Iterable[Path],
        *,
        stored: list[str],
        num_answered: int = 0,
        failed: dict[str, int] | None = None,
    ) -> None:
        """Store the written files as the outputs of the command, and what is deleted next."""
        outputs = {str(path.absolute()): sha256_of(path) for path in written}
        self.write(CommandState(outputs=outputs, stored=stored, num_answered=num_answered, failed=failed))

    def has_written(self, outputs: Iterable[Path]) -> bool:
        """Return whether the command has written these files, and all files that it wrote are unchanged."""
        written = self.read().outputs or {}
        return {str(path.absolute()) for path in outputs} <= written.keys() and all(
            Path(path).is_file() and sha256_of(Path(path)) == expected for path, expected in written.items()
        )

    def forget(self) -> None:
        """Delete the state: the next start begins anew."""
        (self.root / _STATE).unlink(missing_ok=True)

    def _json(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((self.root / _STATE).read_bytes())
        except FileNotFoundError:
            return {}
        return state

    def _require_own_form(self) -> None:
        """Raise InputError for unfinished work of a version that kept it here."""
        state = self._json()
        left = [name for name in _OF_EARLIER if (self.root / name).exists()]
        if not state.get("outputs"):
            left += [state[name] for name in ("file_id", "batch_id") if state.get(name)]
        if left:
            raise InputError(
                f"{self.root} has the unfinished work of this command by an earlier version ({', '.join(left)}). "
                "Finish it with the version that began it, or delete that folder to begin anew."
            )


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _runs_already(pid: str) -> ConflictError:
    return ConflictError(
        f"the same command already runs (pid {pid}). Wait for it, or stop it and run the command again."
    )
