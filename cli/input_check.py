"""Checks an input file as the server will, before anything is started for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from jobs.errors import InputError

_READ_BYTES = 1 << 20


def require_valid(path: Path, *, endpoint: str, model: str) -> None:
    """Raise InputError listing bad lines where a batch of this file for `model` would fail validation."""
    from openai.types import BatchError

    from cli.watch import describe_listed
    from jobs.batches.scan import Scan
    from jobs.batches.submission import CreateBatch, check_request
    from jobs.lines.reading import iter_lines
    from jobs.settings import load_settings

    check_request(CreateBatch(input_file_id=path.name, endpoint=endpoint, completion_window="24h"))
    settings = load_settings()
    scan = Scan(endpoint=endpoint, models={model}, settings=settings)
    with path.open("rb") as file:
        for line in iter_lines(iter(partial(file.read, _READ_BYTES), b""), max_line_bytes=settings.max_line_bytes):
            scan.check(line)
    problem = scan.file_problem()
    errors = [problem, *scan.listed] if problem else scan.listed
    if errors:
        raise InputError(f"{path} fails validation:\n{describe_listed([BatchError(**error) for error in errors])}")
