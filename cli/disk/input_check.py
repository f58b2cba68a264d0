"""Checks an input file as the server does, before anything is started or sent."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from cli.disk.input_file import opened
from cli.watching.watch import describe_listed
from jobs.errors import InputError
from jobs.lines.endpoints import require_endpoint
from jobs.lines.reading import iter_lines

if TYPE_CHECKING:
    from jobs.batches.scan import Scan

_READ_BYTES = 1 << 20
MAX_SHOWN = 100
"""Most bad lines to show; if there are more, all go into a file."""


class AnyModel(Collection[str]):
    """The models of an unknown server: contains every name."""

    def __contains__(self, _: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(slots=True)
class FoundProblems:
    """The bad lines of a file: the first ones, and a file with all if there are more."""

    input_path: Path
    shown: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0
    file: Path | None = None
    _stack: ExitStack = field(default_factory=ExitStack)
    _stream: TextIO | None = None

    def add(self, problem: dict[str, Any]) -> None:
        self.count += 1
        if self.count <= MAX_SHOWN:
            self.shown.append(problem)
            return
        if self._stream is None:
            self._stream = self._stack.enter_context(_beside(self.input_path))
            self.file = Path(self._stream.name)
            self._stream.writelines(map(_json_line, self.shown))
        self._stream.write(_json_line(problem))

    def close(self) -> None:
        self._stack.close()

    def described(self) -> str:
        """Return the lines to show, and the path of the file with all."""
        from openai.types import BatchError

        listed = describe_listed([BatchError(**problem) for problem in self.shown], most=MAX_SHOWN)
        if self.file is None:
            return listed
        return f"{listed}\n  … and {self.count - len(self.shown):,} more; all of them are in {self.file}"


def require_valid(path: Path, *, endpoint: str, model: str) -> None:
    """Raise InputError listing bad lines if a batch of this file for `model` would fail validation."""
    check_file(path, endpoint=endpoint, models={model})


def check_file(path: Path, *, endpoint: str, models: Collection[str]) -> Scan:
    """Return the scan of a valid file. Raises InputError listing bad lines if a batch of it would fail validation."""
    with opened(path) as file:
        read: Callable[[], bytes] = partial(file.read, _READ_BYTES)
        return check_content(iter(read, b""), path=path, endpoint=endpoint, models=models)


def check_content(content: Iterator[bytes], *, path: Path, endpoint: str, models: Collection[str]) -> Scan:
    """Check as `check_file` does, with the path for errors; many bad lines go into a file beside it."""
    from jobs.batches.scan import Scan
    from jobs.settings import load_settings

    require_endpoint(endpoint)
    settings = load_settings()
    scan = Scan(endpoint=endpoint, models=models, settings=settings)
    problems = FoundProblems(path)
    try:
        for line in iter_lines(content, max_line_bytes=settings.max_line_bytes):
            problem = scan.check(line)
            if problem is not None and not (scan.is_array and problems.count):
                problems.add(problem.wire() | {"custom_id": problem.custom_id})
    finally:
        problems.close()
    whole = scan.file_problem()
    if whole is not None:
        problems.shown.insert(0, whole)
    if problems.shown:
        counted = (
            f", bad lines: {problems.count:,} of {scan.num_requests:,}:"
            if problems.count and not scan.is_array
            else ":"
        )
        raise InputError(f"{path} fails validation{counted}\n{problems.described()}")
    return scan


def _beside(path: Path) -> TextIO:
    """Open a new file for all bad lines, beside the input or in the temporary directory."""
    folder = path.absolute().parent
    name = f"{path.name.removesuffix('.gz').removesuffix('.jsonl')}.invalid"
    if os.access(folder, os.W_OK):
        for suffix in ("", *(f"-{count}" for count in range(2, 1000))):
            with suppress(FileExistsError):
                return (folder / f"{name}{suffix}.jsonl").open("x", encoding="utf-8")
    number, place = tempfile.mkstemp(prefix=f"{name}-", suffix=".jsonl")
    os.close(number)
    return Path(place).open("w", encoding="utf-8")


def _json_line(problem: dict[str, Any]) -> str:
    return json.dumps(problem, ensure_ascii=False) + "\n"
