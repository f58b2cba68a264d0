"""Counts the tokens of lines on this machine as a worker does: by chat template, tokenizer and context.

Starts no engine and downloads no model.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from cli.disk.input_file import opened
from cli.estimating.estimate import Counted
from engine.errors import EngineError
from engine.models.config import load_model_config
from engine.models.paths import HUB_FILES
from engine.tokenizer import load_tokenizer
from jobs.counted import counted
from jobs.lines.bodies import parse_body
from jobs.lines.body_checks import BodyError
from jobs.lines.identical import IdenticalLines
from jobs.lines.input_estimate import InputEstimator
from jobs.lines.reading import InputLine, iter_lines, parse_line
from jobs.settings import load_settings
from workers.prompts import PromptMaker

_READ_BYTES = 1 << 20
_SAY_SECONDS = 10.0
_BY_BYTES = "prompts by bytes: the model's tokenizer is not on this machine"
_EXACTLY = "prompts exactly, by the model's tokenizer and chat template"


def prompts_of(path: str) -> PromptMaker | None:
    """Return the prompt maker of a model; None if its files are not on this machine, or incomplete."""
    folder = _files_here(path)
    if folder is None:
        return None
    try:
        config, tokenizer = load_model_config(str(folder)), load_tokenizer(folder)
    except EngineError:
        return None  # the stack reports why it cannot be loaded
    if tokenizer is None or config.max_model_len is None:
        return None
    return PromptMaker(tokenizer, max_model_len=config.max_model_len, vocab_size=config.vocab_size)


def count_lines(lines: Path, prompts: PromptMaker, *, endpoint: str) -> Counted:
    """Count valid lines. Lines too long for the context, which fail, and copies of earlier lines, which do not run,
    count as nothing.
    """
    num_lines = num_failing = num_copies = input_tokens = output_tokens = 0
    may_think = False
    say_at = time.monotonic() + _SAY_SECONDS
    measure = _measure(prompts, endpoint=endpoint)
    for line, is_copy in _valid_lines(lines, endpoint=endpoint):
        num_lines += 1
        if is_copy:
            num_copies += 1
            continue
        try:
            prompt, answers = measure(line)
        except BodyError:
            num_failing += 1
            continue
        if num_lines == 1:  # the lines of one command have the same parameters
            may_think = prompts.may_think(line, endpoint=endpoint)
        input_tokens, output_tokens = input_tokens + prompt, output_tokens + answers
        if time.monotonic() >= say_at:
            say_at += _SAY_SECONDS
            print(f"tokenmill: counted {counted(num_lines, 'line')}", file=sys.stderr, flush=True)
    return Counted(
        num_lines=num_lines - num_failing - num_copies,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        basis=_EXACTLY,
        may_think=may_think,
        fields=_shown({"too long, would fail": num_failing, "same as an earlier one": num_copies}),
    )


def _shown(counts: Mapping[str, int]) -> dict[str, str]:
    return {name: counted(count, "line") for name, count in counts.items() if count}


def _measure(prompts: PromptMaker, *, endpoint: str) -> Callable[[InputLine], tuple[int, int]]:
    most = load_settings().default_max_tokens
    return partial(
        prompts.measure, endpoint=endpoint, default_max_tokens=most, is_wanted=lambda: True, room=nullcontext
    )


def _valid_lines(lines: Path, *, endpoint: str) -> Iterator[tuple[InputLine, bool]]:
    """Yield lines, each with whether it is a copy of an earlier one."""
    identical = IdenticalLines()
    with opened(lines) as file:
        read: Callable[[], bytes] = partial(file.read, _READ_BYTES)
        for raw in iter_lines(iter(read, b""), max_line_bytes=load_settings().max_line_bytes):
            assert raw.content is not None, "lines are valid"
            line = parse_line(raw.content, line_no=raw.line_no, endpoint=endpoint)
            yield line, identical.add(line, raw.content, parse_body(endpoint, line.body)) is not None


def count_bytes(lines: Path) -> Counted:
    """Count by bytes, as budgets reserve tokens at submission."""
    estimator = InputEstimator(default_max_tokens=load_settings().default_max_tokens)
    with opened(lines) as file:
        while piece := file.read(_READ_BYTES):
            estimator.feed(piece)
    estimate = estimator.finish()
    return Counted(
        num_lines=estimate.num_requests,
        input_tokens=estimate.estimated_input_tokens,
        output_tokens=estimate.estimated_output_tokens,
        basis=_BY_BYTES,
    )


def _files_here(path: str) -> Path | None:
    """Return the folder of a model's files; None for a hub model that is not downloaded yet."""
    if Path(path).exists():
        return Path(path)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    hub_id, _, revision = path.partition("@")
    try:
        return Path(
            snapshot_download(hub_id, revision=revision or None, allow_patterns=HUB_FILES, local_files_only=True)
        )
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError):
        return None
