"""Reads the multipart form of one upload as its bytes arrive: small fields into memory, the file into a sink.

It never holds more than one field (FIELD_BYTES) and the current piece of the file. Fields may come in any order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from jobs.errors import InputError, TooLargeError

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks  # exists for type checkers only

FIELD_BYTES = 1024
MAX_FILENAME_CHARACTERS = 255
FILENAME_PATTERN = (
    r"^[^\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200c\u200e\u200f"
    r"\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]+$"
)
"""No control characters, line ends or marks that hide or reorder text. Any other character is allowed, as it may be
from a newer version of Unicode."""

# Clients write these three as percent escapes in a form's filename (HTML living standard, multipart/form-data).
_ESCAPES = {"%22": '"', "%0D": "\r", "%0A": "\n"}

FieldCheck = Callable[[str, str], None]
"""Takes a field's name and value; raises InputError if the value is not allowed."""


class FileSink(Protocol):
    """The destination of the form's file content."""

    def begin(self, filename: str) -> None: ...
    def write(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadForm:
    """The form without its files' content; `fields` holds the values as sent."""

    filename: str
    """Of the last file, where there are several."""
    fields: dict[str, str]


class UploadReader:
    """A parser: feed it the body in pieces of any size, then `finish` returns the form.

    `checks` are the fields allowed beside the file: each check gets name and value as soon as the field is complete,
    and may refuse it before the file comes. `file` is the name of the file's field, which may be repeated up to
    `max_files` times.
    """

    def __init__(
        self,
        content_type: str,
        sink: FileSink,
        *,
        checks: Mapping[str, FieldCheck],
        file: str = "file",
        max_files: int = 1,
    ) -> None:
        self._sink, self._checks, self._file = sink, checks, file
        self._num_files, self._max_files = 0, max_files
        self._fields: dict[str, str] = {}
        self._filename: str | None = None
        self._name = ""  # of the current part
        self._value = bytearray()  # of the current part, unless it is the file
        self._header_name, self._header_value = bytearray(), bytearray()
        self._disposition = b""
        self._is_complete = False
        self._parser = MultipartParser(_boundary(content_type), self._callbacks())

    def _callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": lambda data, start, end: self._header_name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header_value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._begin_content,
            "on_part_data": self._add_content,
            "on_part_end": self._end_part,
            "on_end": self._end_form,
        }

    def feed(self, data: bytes) -> None:
        """Parse a piece. Raise InputError if the form is malformed, or has an unknown or refused field."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise InputError(
                f"The multipart form is malformed ({error}). Send it with a standard HTTP client.", code="invalid_form"
            ) from None

    def finish(self) -> UploadForm:
        """Return the form. Raise InputError if it ended early or has no file."""
        if not self._is_complete:
            raise InputError(
                "The multipart form ended before its last boundary. Send the whole file again.", code="invalid_form"
            )
        if self._filename is None:
            message = f"Missing required parameter: '{self._file}'."
            raise InputError(message, param=self._file, code="missing_required_parameter")
        return UploadForm(filename=self._filename, fields=dict(self._fields))

    def _begin_part(self) -> None:
        self._disposition = b""
        self._value.clear()

    def _end_header(self) -> None:
        if bytes(self._header_name).lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _begin_content(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode(errors="replace")
        allowed = [*self._checks, self._file]
        if self._name not in allowed:
            raise InputError(
                f"Unknown parameter: '{self._name[:100]}'. Allowed are {', '.join(allowed)}.",
                param=self._name[:100],
                code="unknown_parameter",
            )
        if self._name == self._file:
            self._begin_file(options.get(b"filename"))
        elif self._name in self._fields:
            raise self._sent_twice()

    def _begin_file(self, filename: bytes | None) -> None:
        self._num_files += 1
        if self._num_files > self._max_files:
            raise (
                self._sent_twice()
                if self._max_files == 1
                else InputError(
                    f"'{self._file}' was sent more than {self._max_files} times. Send the rest in another request.",
                    param=self._file,
                    code="invalid_value",
                )
            )
        self._filename = _read_filename(filename, param=self._file)
        self._sink.begin(self._filename)

    def _sent_twice(self) -> InputError:
        return InputError(f"'{self._name}' was sent twice. Send it once.", param=self._name, code="invalid_value")

    def _add_content(self, data: bytes, start: int, end: int) -> None:
        if self._name == self._file:
            self._sink.write(data[start:end])
            return
        self._value.extend(data[start:end])
        if len(self._value) > FIELD_BYTES:
            raise TooLargeError(
                f"'{self._name}' has more than the {FIELD_BYTES} bytes allowed. Shorten it.", param=self._name
            )

    def _end_part(self) -> None:
        if self._name != self._file:
            value = self._value.decode(errors="replace")
            self._checks[self._name](self._name, value)
            self._fields[self._name] = value

    def _end_form(self) -> None:
        self._is_complete = True


def _boundary(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 70:  # RFC 2046 §5.1.1
        raise InputError(
            f"The body must be multipart/form-data with a boundary; its type is {content_type[:100]!r}. "
            "Send the fields purpose and file as a form.",
            code="invalid_form",
        )
    return boundary


def _read_filename(raw: bytes | None, *, param: str) -> str:
    if raw is None:
        raise InputError(f"'{param}' must be sent as a file, with a filename.", param=param, code="invalid_value")
    name = re.sub("%22|%0[DdAa]", lambda match: _ESCAPES[match[0].upper()], raw.decode(errors="replace"))
    check_filename(name, param=param)
    return name


def check_filename(name: str, *, param: str) -> None:
    """Raise InputError if a filename is not allowed."""
    if not 0 < len(name) <= MAX_FILENAME_CHARACTERS or not re.fullmatch(FILENAME_PATTERN, name):
        raise InputError(
            f"The filename {name[:100]!r} must have 1 to {MAX_FILENAME_CHARACTERS} printable characters. Rename it.",
            param=param,
            code="invalid_value",
        )
