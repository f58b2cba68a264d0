"""Split and parse the lines of an input file, and describe the error of an invalid one.

Pure: bytes in, values out; no SQL, no storage. `jobs.lines.bodies` checks the bodies.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from jobs.errors import InputError

BOM = b"\xef\xbb\xbf"
GZIP = b"\x1f\x8b"
MAX_SHOWN = 80
"""Characters of a wrong value that an error message quotes."""
MAX_MESSAGE, MAX_PARAM = 500, 200
_ARRAY = "this file is one JSON array; write one object a line, such as with jq -c '.[]' IN.json > OUT.jsonl"
"""Longest message about a line, and longest parameter name: both may quote keys of the line."""
MAX_LEVELS = 1024
"""Nesting depth of objects and arrays, the line itself included, that orjson reads."""
MARK = "context"
"""The member of a line of a filled input that the service has written: what was filled in, or why nothing was."""


class RawLine(NamedTuple):
    """One non-blank line and its place in the file; a named tuple because a file has millions of them."""

    line_no: int  # 0-based; blank lines count
    byte_start: int
    byte_end: int  # exclusive, the line end included
    content: bytes | None  # without BOM and line end; None where the line is too long


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLine:
    """A well-formed request line."""

    line_no: int
    custom_id: str
    model: str
    body: dict[str, Any]
    """Parsed; `jobs.lines.bodies` checks it later."""
    context: dict[str, Any] | None = None
    """The passages that the service put into its prompt, if any: its answer cites them."""


class LineProblem(InputError):
    """An invalid line of an input file: `code` and `param` as listed in the Batch object.

    `line_no` is 0-based as everywhere internally; `wire()` gives the 1-based number that users see.
    """

    def __init__(
        self, code: str, message: str, *, line_no: int, param: str | None = None, custom_id: str | None = None
    ) -> None:
        super().__init__(
            _stored(message, MAX_MESSAGE), param=None if param is None else _stored(param, MAX_PARAM), code=code
        )
        self.line_no = line_no
        self.custom_id = custom_id

    def __str__(self) -> str:
        return f"line {self.line_no + 1}: {self.message}"

    def wire(self) -> dict[str, Any]:
        """Return the entry of a Batch's `errors.data`."""
        return {"code": self.code, "message": self.message, "param": self.param, "line": self.line_no + 1}


def _stored(text: str, most: int) -> str:
    """Return a text shortened and without NUL, which Postgres' JSON does not allow."""
    text = text if len(text) <= most else text[:most] + "…"
    return text.replace("\0", "\\u0000")


class UnfilledLine(LineProblem):
    """A valid line that could not be filled, or no longer fits: it fails alone, whatever its batch does with others."""

    @classmethod
    def of(cls, problem: LineProblem) -> UnfilledLine:
        """Return the problem that a filled line has."""
        line_no, param = problem.line_no, problem.param
        return cls(problem.code, problem.message, line_no=line_no, param=param, custom_id=problem.custom_id)


class LineSplitter:
    """Split a file that arrives in blocks of any size into its non-blank lines, holding one block and one line.

    Accepts LF and CRLF, a BOM at the start of line 0, blank lines (counted, not returned) and a missing final line end.
    A line longer than `max_line_bytes` is returned without its content.
    """

    def __init__(self, *, max_line_bytes: int, first_line: int = 0, byte_start: int = 0) -> None:
        """`first_line` and `byte_start` are the position of a stream that begins inside the file."""
        self._max_line_bytes = max_line_bytes
        self._line_no = first_line
        self._byte_start = byte_start
        # the beginning of a line that continues in the next block; emptied once it is too long
        self._held = bytearray()
        self._held_size = 0

    def feed(self, block: bytes) -> Iterator[RawLine]:
        """Yield the lines that end in this block; exhaust the iterator before the next call."""
        first, *others = block.split(b"\n")
        self._hold(first)
        if not others:
            return
        *whole, rest = others
        yield from self._end_held(line_end=1)
        line_no, start, longest = self._line_no, self._byte_start, self._max_line_bytes
        for part in whole:  # never line 0, so no BOM
            end = start + len(part) + 1
            if len(part) > longest:
                yield RawLine(line_no, start, end, None)
            elif part and not part.isspace():
                yield RawLine(line_no, start, end, part.removesuffix(b"\r"))
            line_no += 1
            start = end
        self._line_no, self._byte_start = line_no, start
        self._hold(rest)

    def finish(self) -> Iterator[RawLine]:
        """Yield the last line, if the file does not end with a line end; call last."""
        return self._end_held(line_end=0)

    def _hold(self, part: bytes) -> None:
        self._held_size += len(part)
        if self._held_size <= self._max_line_bytes:
            self._held += part
        else:
            self._held.clear()

    def _end_held(self, *, line_end: int) -> Iterator[RawLine]:
        line_no, start = self._line_no, self._byte_start
        end = start + self._held_size + line_end
        if self._held_size > self._max_line_bytes:
            yield RawLine(line_no, start, end, None)
        else:
            line = bytes(self._held).removeprefix(BOM if line_no == 0 else b"")
            if line and not line.isspace():
                yield RawLine(line_no, start, end, line.removesuffix(b"\r"))
        self._held.clear()
        self._line_no, self._byte_start, self._held_size = line_no + 1, end, 0


def iter_lines(blocks: Iterable[bytes], *, max_line_bytes: int, is_cut: bool = False) -> Iterator[RawLine]:
    """Split a stream as `LineSplitter` does; with `is_cut` the part after the last line end is dropped."""
    splitter = LineSplitter(max_line_bytes=max_line_bytes)
    for block in blocks:
        yield from splitter.feed(block)
    if not is_cut:
        yield from splitter.finish()


def split_lines(content: bytes, *, first_line: int = 0, byte_start: int = 0) -> list[RawLine]:
    """Return the non-blank lines of an already validated byte range, such as a chunk's."""
    splitter = LineSplitter(max_line_bytes=len(content), first_line=first_line, byte_start=byte_start)
    return [*splitter.feed(content), *splitter.finish()]


def parse_line(raw: bytes, *, line_no: int, endpoint: str, is_filled: bool = False) -> InputLine:
    """Parse one request line. Raises LineProblem with the code of its first error.

    Keys other than custom_id, method, url and body are the user's own and are ignored; except `context` where the line
    `is_filled`, because then the service wrote it: raises UnfilledLine where it says that nothing was filled in.
    """
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _unread(raw, error, line_no=line_no) from None
    if type(line) is not dict:
        must_be = "a JSON object with custom_id, method, url and body"
        is_whole = line_no == 0 and is_array(raw)
        message = _ARRAY if is_whole else f"this line is {_kind(line)}; it must be {must_be}"
        raise LineProblem("invalid_json_line", message, line_no=line_no)
    put_in = line.get(MARK) if is_filled else None
    if type(put_in) is dict and "error" in put_in:
        raise _unfilled(line, put_in["error"], line_no=line_no)
    custom_id, body = line.get("custom_id"), line.get("body")
    model = body.get("model") if type(body) is dict else None
    if isinstance(custom_id, str) and isinstance(body, dict) and isinstance(model, str):
        fits = line.get("method") == "POST" and line.get("url") == endpoint
        if custom_id and model and fits:
            return InputLine(line_no=line_no, custom_id=custom_id, model=model, body=body, context=put_in)
    raise _problem_of(line, line_no=line_no, endpoint=endpoint)


def is_array(raw: bytes | None) -> bool:
    """Return whether a line begins a JSON array, as a file does that is not JSONL."""
    return raw is not None and raw.lstrip().startswith(b"[")


def custom_id_of(raw: bytes | None) -> str | None:
    """Return the custom_id of any line, valid or not; None where it has none."""
    if raw is None:
        return None
    try:
        line = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    custom_id = line.get("custom_id") if type(line) is dict else None
    return custom_id if type(custom_id) is str else None


def too_long_problem(line: RawLine, *, max_line_bytes: int) -> LineProblem:
    """Return the error of a line that is longer than allowed."""
    size = line.byte_end - line.byte_start
    message = f"this line is {size} bytes long; {max_line_bytes} are allowed. Shorten it or split the request"
    return LineProblem("invalid_request", message, line_no=line.line_no)


class CustomIds:
    """The custom_ids of a file and the first line of each.

    Keeps a `short_digest` of each, so that memory does not depend on their length: about 130 MiB for a million.
    """

    def __init__(self) -> None:
        self._first_lines: dict[int, int] = {}

    def add(self, custom_id: str, line_no: int) -> int | None:
        """Add an id; return the 0-based line that used it before, or None."""
        first = self._first_lines.setdefault(short_digest(custom_id.encode()), line_no)
        return None if first == line_no else first


def short_digest(content: bytes) -> int:
    """Return a 96-bit digest that is valid within one process: Python's hash, keyed anew in each, and a CRC.

    The chance of a collision among a million contents is 1 in 10^17. A cryptographic digest takes three times as long,
    and validation reads a million lines.
    """
    return hash(content) << 32 | zlib.crc32(content)


def _unfilled(line: dict[str, Any], error: dict[str, str], *, line_no: int) -> UnfilledLine:
    param, custom_id = f"body.{MARK}", line["custom_id"]
    return UnfilledLine(error["code"], error["message"], line_no=line_no, param=param, custom_id=custom_id)


def _unread(raw: bytes, error: orjson.JSONDecodeError, *, line_no: int) -> LineProblem:
    """Return the reason why a line could not be parsed."""
    if error.msg == "depth limit exceeded":
        message = f"this line is nested more than {MAX_LEVELS} levels deep; make it flatter"
        return LineProblem("invalid_request", message, line_no=line_no)
    message = _ARRAY if line_no == 0 and is_array(raw) else _why_no_json(raw, error)
    return LineProblem("invalid_json_line", message, line_no=line_no)


def _why_no_json(raw: bytes, error: orjson.JSONDecodeError) -> str:
    if raw.startswith(GZIP):
        return "this file is compressed with gzip; unpack it, or send it with `tokenmill files upload`, which does"
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        return f"this line is not UTF-8 from its byte {wrong.start + 1} on; save the file as UTF-8"
    position = f"character {error.pos + 1}"
    if error.msg.startswith("invalid literal"):  # orjson guesses the literal from the first letter
        return f"this line is not valid JSON from its {position} on"
    return f"this line is not valid JSON: {error.msg} at {position}"


def _problem_of(line: dict[str, Any], *, line_no: int, endpoint: str) -> LineProblem:
    """Return the first error of a line that is valid JSON."""
    custom_id = line.get("custom_id")
    known_id = custom_id if type(custom_id) is str else None
    code, param, message = _complaint(line, endpoint)
    return LineProblem(code, message, line_no=line_no, param=param, custom_id=known_id)


def _complaint(line: dict[str, Any], endpoint: str) -> tuple[str, str, str]:
    custom_id, method, url, body = (line.get(key) for key in ("custom_id", "method", "url", "body"))
    if type(custom_id) is not str or not custom_id:
        return (
            "invalid_request",
            "custom_id",
            f"custom_id {_given(line, 'custom_id')}; give every line its own non-empty string",
        )
    if method != "POST":
        return "invalid_request", "method", f'method {_given(line, "method")}; it must be "POST"'
    if url != endpoint:
        return "url_mismatch", "url", f"url {_given(line, 'url')}; this batch's endpoint is {shown(endpoint)}"
    if type(body) is not dict:
        return "invalid_request", "body", f"body {_given(line, 'body')}; it must be an object, the request itself"
    return "invalid_request", "body.model", f"body.model {_given(body, 'model')}; name the model as a string"


def _given(line: dict[str, Any], key: str) -> str:
    return f"is {shown(line[key])}" if key in line else "is missing"


def shown(value: object) -> str:
    """Quote a JSON value in an error message, shortened to MAX_SHOWN characters.

    orjson parses values nested 1,024 deep and writes only 254, so some values cannot be quoted.
    """
    try:
        text = orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        return "a value nested too deeply to be shown"
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def _kind(value: object) -> str:
    names: dict[type, str] = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
