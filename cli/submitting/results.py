"""The results of a command's batches, as streams and as the user's files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from cli.client import server_errors_as_sentences
from cli.disk.download import download, replacing
from cli.submitting.ordered_results import OrderedResults
from cli.watching.watch import lines_of

if TYPE_CHECKING:
    from openai import OpenAI


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFiles:
    """The files of answers and of errors, each in the order of the lines."""

    answers: Path

    @property
    def errors(self) -> Path:
        return errors_path(self.answers)

    @property
    def paths(self) -> list[Path]:
        """Return the files that exist."""
        return [path for path in (self.answers, self.errors) if path.exists()]

    def remove(self) -> None:
        for path in self.paths:
            path.unlink()


def errors_path(output: Path) -> Path:
    """Return `out.errors.jsonl` for `out.jsonl`."""
    return output.with_name(f"{output.stem}.errors{output.suffix or '.jsonl'}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultStreams:
    """The results of batches without line feeds, each stream in the order of the lines: every line has one result."""

    answers: Sequence[Iterable[bytes]]
    errors: Sequence[Iterable[bytes]]


@contextmanager
def opened_results(client: OpenAI, batches: Sequence[Any]) -> Iterator[ResultStreams]:
    """Open the results of batches, each of which runs lines of the one before again."""
    with ExitStack() as closing, server_errors_as_sentences(client):

        def opened(file_id: str | None) -> Iterable[bytes]:
            if file_id is None:
                return ()
            answer = closing.enter_context(client.files.with_streaming_response.content(file_id))
            return lines_of(answer.iter_bytes())

        errors = [opened(batches[-1].error_file_id)]
        for batch, later in pairwise(batches):
            files = (later.output_file_id, later.error_file_id)
            again = [OrderedResults(opened(file_id), name=str(file_id)) for file_id in files]
            errors.append(_without(opened(batch.error_file_id), again))
        yield ResultStreams(answers=[opened(batch.output_file_id) for batch in batches], errors=errors)


def _without(errors: Iterable[bytes], again: Sequence[OrderedResults]) -> Iterator[bytes]:
    """Yield the errors of lines that did not run again."""
    for raw in errors:
        custom_id = str(orjson.loads(raw).get("custom_id"))
        if all(results.pop(custom_id) is None for results in again):
            yield raw


def write_results(client: OpenAI, batches: Sequence[Any], files: ResultFiles, *, custom_ids: Iterable[str]) -> None:
    """Write the user's files, replaced once complete, the answers last: where these are, all is whole.

    `custom_ids` are those of the lines in their order. Raises ServiceError if a result belongs to none.
    """
    if len(batches) == 1:
        with server_errors_as_sentences(client):
            _write_errors(client, batches[0], files.errors)
            download(client, batches[0].output_file_id, files.answers)
        return
    with opened_results(client, batches) as streams, ExitStack() as closing:
        answers = [OrderedResults(lines, name="an output file") for lines in streams.answers]
        errors = [OrderedResults(lines, name="an error file") for lines in streams.errors]
        answers_file = closing.enter_context(replacing(files.answers))
        errors_file = closing.enter_context(replacing(files.errors))
        for custom_id in custom_ids:
            for results, file in ((answers, answers_file), (errors, errors_file)):
                file.writelines(line + b"\n" for each in results if (line := each.pop(custom_id)) is not None)
        for each in (*answers, *errors):
            each.require_end()
    if files.errors.stat().st_size == 0:
        files.errors.unlink()


def _write_errors(client: OpenAI, batch: Any, target: Path) -> None:
    if batch.error_file_id:
        download(client, batch.error_file_id, target)
    else:
        target.unlink(missing_ok=True)  # of an earlier run
