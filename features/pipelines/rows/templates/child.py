"""The rendering process: reads a prompt's parts, then groups of rows, and writes the outcome of each row.

It is a fork, confined before it compiles or renders anything, and ends with its parent. A row that exceeds its limits
kills it.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import IO, Any

import minijinja
import orjson

from confined import warm_child
from confined.isolation import address_space_bytes, confine
from features.pipelines.rows.templates.frames import read_frame, write_frame
from features.pipelines.rows.templates.limits import FUNCTIONS

_NOT_OFFERED = (
    *("attr", "batch", "bool", "chain", "e", "escape", "format", "groupby", "pprint", "safe", "slice", "urlencode"),
    "zip",
)
"""Filters of minijinja 3.0 that a template could still reach by name: `map("format")`."""

_FUNCTIONS_NOT_OFFERED = ("cycler", "debug", "joiner")

_INTEGERS = range(-(1 << 127), 1 << 128)
"""The integers that minijinja 3.0 supports."""


def main() -> None:
    """Fork for one parent; each fork serves one prompt."""
    warm_child.serve(b"", partial(_serve, address_space_bytes()))


def _serve(loaded_bytes: int, source: IO[bytes], answers: IO[bytes], parent_id: int) -> None:
    settings = read_frame(source)
    confine(loaded_bytes + settings["memory_bytes"], parent_id=parent_id)
    renderer = _Renderer(settings)
    write_frame(answers, renderer.compiled())
    while True:
        try:
            contexts = read_frame(source, integer=_integer)
        except EOFError:
            return
        for context in contexts:
            outcome = renderer.rendered(context)
            write_frame(answers, orjson.dumps({**outcome, "cpu_seconds": time.process_time()}))


class _Renderer:
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._parts: Sequence[str] = settings["parts"]
        self._max_output_bytes: int = settings["max_output_bytes"]
        self._cpu_seconds: float = settings["cpu_seconds"]
        self._environment = _environment(fuel=settings["fuel"])

    def compiled(self) -> bytes:
        """Return the names that the parts take from a row, or the error of one of them."""
        names: set[str] = set()
        with _CpuLimit(self._cpu_seconds):
            for number, part in enumerate(self._parts):
                try:
                    self._environment.add_template(str(number), part)
                    names |= self._environment.undeclared_variables_in_str(part)
                except minijinja.TemplateError as error:
                    return orjson.dumps({"error": _message(error), "part": number, **_place(error, part)})
        return orjson.dumps({"names": sorted(names - FUNCTIONS)})

    def rendered(self, context: Mapping[str, Any]) -> dict[str, Any]:
        """Return the texts of the parts, or the error."""
        texts: list[str] = []
        left = self._max_output_bytes
        with _CpuLimit(self._cpu_seconds):
            for number, part in enumerate(self._parts):
                try:
                    text = self._environment.render_template(str(number), **context)
                    left -= len(text.encode())
                    if left < 0:
                        return {"too_large": True}
                    texts.append(text)
                except minijinja.TemplateError as error:
                    return {"error": _message(error), "part": number, **_place(error, part)}
                except MemoryError:
                    return {"no_memory": True}
                except Exception as error:  # noqa: BLE001 - our filters raise Python's errors for wrong arguments
                    message = str(error).removeprefix("_").encode(errors="replace").decode()
                    return {"error": message, "part": number}
            return {"texts": texts}


class _LongInteger:
    """An integer that minijinja would turn into a float; it can be shown, and compared with itself."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __str__(self) -> str:
        return str(self.value)


def _integer(digits: str) -> int | _LongInteger:
    value = int(digits)
    return value if value in _INTEGERS else _LongInteger(value)


class _CpuLimit:
    """Has the kernel kill this process when a block has used its CPU time, even inside a library call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __enter__(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, self._seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _environment(*, fuel: int) -> minijinja.Environment:
    environment = minijinja.Environment(
        undefined_behavior="strict",
        fuel=fuel,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_escape_callback=lambda _name: False,
        filters={"tojson": _tojson, "truncate": _truncate},
    )
    for name in _NOT_OFFERED:
        environment.remove_filter(name)
    for name in _FUNCTIONS_NOT_OFFERED:
        environment.remove_global(name)
    return environment


def _tojson(value: Any, indent: int | None = None) -> str:
    """Write JSON for a model: unlike minijinja's own filter, without HTML escapes."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=_plain)


def _plain(value: Any) -> Any:
    """Convert the values that templates pass to filters: views and iterators of rows' lists and objects."""
    if isinstance(value, _LongInteger):
        return value.value
    return dict(value) if isinstance(value, Mapping) else list(value)


def _truncate(value: str, length: int, end: str = "…") -> str:
    """Cut a text to at most `length` characters, `end` included."""
    text = str(value)
    return text if len(text) <= length else text[: max(0, length - len(end))] + end[:length]


def _message(error: minijinja.TemplateError) -> str:
    if error.kind == "OutOfFuel":
        return "takes too many steps. Shorten its loops."
    return str(error.detail or error.message)


def _place(error: minijinja.TemplateError, source: str) -> dict[str, int]:
    """Return the line, and the column if known, both from 1 in this part."""
    line, place = error.line, error.range
    if line is None:
        return {}
    if place is None or error.kind == "OutOfFuel":
        return {"line": line}
    before = source.encode()[: place[0]].decode(errors="replace")
    return {"line": line, "column": len(before) - before.rfind("\n")}


if __name__ == "__main__":
    main()
