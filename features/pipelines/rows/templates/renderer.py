"""Renders rows with a template, in order: each becomes messages or an error. A bad row affects no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from features.pipelines.rows.templates.cpu_time import CpuTime
from features.pipelines.rows.templates.limits import Limits
from features.pipelines.rows.templates.process import RendererDiedError, RenderingProcess
from features.pipelines.rows.templates.template import Template, compiled
from jobs.errors import InputError
from tokenmill.row_json import as_shown, dumps

_GROUP_ROWS = 64
_GROUP_BYTES = 1 << 20
_NAMED_LEVELS = 3
"""Levels of a row that are named in the error of a value that cannot be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The messages of a row."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowError:
    """The error of a row: a sentence that begins with the place in the template, if there is one."""

    message: str


class Renderer:
    """A renderer; use it as a context manager, in one thread. `render` may be called repeatedly inside.

    Values of a row are those that `tokenmill.row_json` writes, except bytes.
    """

    def __init__(
        self,
        template: Template,
        *,
        limits: Limits | None = None,
        cpu: CpuTime | None = None,
        waits: Callable[[], None] = lambda: None,
    ) -> None:
        """`cpu` counts and limits the CPU time of all rows; `waits` is called at each row and during long ones.

        An exception from `waits` ends the rendering.
        """
        self._template = template
        self._limits = limits or Limits()
        self._cpu = cpu
        self._waits = waits
        self._process: RenderingProcess | None = None
        self._num_deaths = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def render(self, contexts: Iterable[Mapping[str, Any] | RowError]) -> Iterator[Rendered | RowError]:
        """Yield the outcome of each row in order, reading some rows ahead; a RowError is passed through.

        Raise InputError once more than `max_deaths` rows have killed their renderer, or all used too much CPU time, and
        TemplateRefusedError at the first row if the template does not compile.
        """
        for group in _groups(_encoded(context, self._limits) for context in contexts):
            yield from self._rendered(group)

    def _rendered(self, group: Sequence[bytes | RowError]) -> Iterator[Rendered | RowError]:
        outcomes = iter(self._outcomes([row for row in group if isinstance(row, bytes)]))
        for row in group:
            yield row if isinstance(row, RowError) else next(outcomes)

    def _outcomes(self, rows: Sequence[bytes]) -> list[Rendered | RowError]:
        """Render all rows; if the process dies of one, a new process continues after it."""
        outcomes: list[Rendered | RowError] = []
        tried_again: int | None = None
        while len(outcomes) < len(rows):
            try:
                process = self._started()
                process.ask(b"[" + b",".join(rows[len(outcomes) :]) + b"]")
                while len(outcomes) < len(rows):
                    outcomes.append(self._outcome(process.answer()))
                    self._count_cpu(process)
                    self._waits()
            except RendererDiedError as death:
                self._count_cpu(self._process)
                self._process = None
                if not death.is_by_row and tried_again != len(outcomes):
                    tried_again = len(outcomes)  # it was killed from outside, perhaps because memory was short
                    continue
                self._count_death(death)
                outcomes.append(RowError(message=f"the prompt {death.reason} with this row"))
        return outcomes

    def _outcome(self, answer: Mapping[str, Any]) -> Rendered | RowError:
        parts = self._template.parts
        if "texts" in answer:
            texts = zip(parts, answer["texts"], strict=True)
            return Rendered(messages=tuple(Message(role=part.role, content=text) for part, text in texts))
        if "too_large" in answer:
            return RowError(message=f"the prompt is longer than {self._limits.max_output_bytes:,} bytes with this row")
        if "no_memory" in answer:
            mib = self._limits.memory_bytes >> 20
            return RowError(message=f"the prompt needs more than {mib} MiB of memory with this row")
        line = parts[answer["part"]].first_line + answer.get("line", 1) - 1
        place = f"line {line}, column {answer['column']}" if "column" in answer else f"line {line}"
        return RowError(message=f"{place} of the prompt: {answer['error']}")

    def _started(self) -> RenderingProcess:
        if self._process is None:
            self._process, _ = compiled(self._template, self._limits, waits=self._waits)
        return self._process

    def _count_cpu(self, process: RenderingProcess | None) -> None:
        if self._cpu is not None and process is not None:
            self._cpu.add(process.newly_used())

    def _count_death(self, death: RendererDiedError) -> None:
        self._num_deaths += 1
        if self._num_deaths > self._limits.max_deaths:
            raise InputError(
                f"the prompt {death.reason} with {self._num_deaths:,} of the rows; no more are tried. Make it simpler.",
                code="invalid_template",
            )

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


def _encoded(context: Mapping[str, Any] | RowError, limits: Limits) -> bytes | RowError:
    if isinstance(context, RowError):
        return context
    try:
        row = dumps(dict(context), default=as_shown)
    except TypeError as error:
        problem = _unshown(context) or str(error)
        return RowError(message=f"the row has a value that no prompt can show: {problem}")
    if len(row) > limits.max_row_bytes:
        return RowError(message=f"the row has {len(row):,} bytes as JSON; {limits.max_row_bytes:,} are allowed")
    return row


def _unshown(values: Mapping[str, Any], *, level: int = 0) -> str | None:
    """Return the name of the first value that cannot be shown, and why."""
    for name, value in values.items():
        try:
            dumps(value, default=as_shown)
        except TypeError as error:
            inner = _unshown(value, level=level + 1) if isinstance(value, dict) and level < _NAMED_LEVELS else None
            return f"{name}.{inner}" if inner else f"{name}: {error.__cause__ or error}"
    return None


def _groups(rows: Iterable[bytes | RowError]) -> Iterator[list[bytes | RowError]]:
    """Group rows to send fewer messages; a large row waits for few others."""
    group: list[bytes | RowError] = []
    size = 0
    for row in rows:
        group.append(row)
        size += len(row) if isinstance(row, bytes) else 0
        if len(group) >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
