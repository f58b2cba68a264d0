"""The separator and encoding of a CSV file, found in its first bytes.

Pure. Spreadsheets write `;` where the comma is a decimal sign, tabs, UTF-16 with a mark of its byte order, and
Windows-1252, whose printable part includes that of Latin-1.
"""

from __future__ import annotations

import codecs
import csv
import io
from dataclasses import dataclass
from itertools import islice

SAMPLE_BYTES = 256 * 1024
_SEPARATORS = (",", ";", "\t", "|")
"""In the order of preference where several separate all rows alike."""
_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SAMPLE_ROWS = 50
_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_UTF_8 = "utf-8-sig"
_WINDOWS = "cp1252"
_ASCII_BYTES = 0x80
_ENCODING_NAMES = {_UTF_8: "UTF-8", "utf-16": "UTF-16", _WINDOWS: "Windows-1252"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How the fields of a CSV file are separated and its texts encoded."""

    separator: str = ","
    encoding: str = _UTF_8

    @property
    def encoding_name(self) -> str:
        """Return the encoding as people name it."""
        return _ENCODING_NAMES[self.encoding]

    @property
    def errors(self) -> str:
        """Return how undecodable bytes are decoded: as surrogates in UTF-8, so that their line is known."""
        return "surrogateescape" if self.encoding == _UTF_8 else "strict"

    @property
    def note(self) -> str | None:
        """Return how the file is read, if not as UTF-8 with commas."""
        unusual = []
        if self.separator != ",":
            unusual.append(f"{_NAMES[self.separator]} between the fields")
        if self.encoding != _UTF_8:
            unusual.append(f"its texts as {self.encoding_name}")
        return " and ".join(unusual) or None


def dialect_of(sample: bytes, *, name: str, may_guess: bool) -> Dialect:
    """Return the dialect of a file whose content begins with `sample`; names that end in .tsv have tabs.

    What is not Unicode is taken for Windows-1252 if one `may_guess`, as somebody reads the note.
    """
    encoding = _encoding_of(sample)
    if encoding == _WINDOWS and not may_guess:
        encoding = _UTF_8  # its row is then refused
    names_tabs = ".tsv" in name.lower()[-len(".tsv.gz") :]
    text = sample.decode(encoding, errors="replace")
    is_cut = len(sample) >= SAMPLE_BYTES
    return Dialect(separator="\t" if names_tabs else _separator_of(text, is_cut=is_cut), encoding=encoding)


def _encoding_of(sample: bytes) -> str:
    """Return the encoding; a text that has both characters of UTF-8 and bytes that are none is damaged UTF-8."""
    for mark, encoding in _MARKS.items():
        if sample.startswith(mark):
            return encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample)
    except UnicodeDecodeError:
        has_others = not sample.decode("utf-8", errors="ignore").isascii()
        return _UTF_8 if has_others or not _is_western(sample) else _WINDOWS
    return _UTF_8


def _is_western(sample: bytes) -> bool:
    """Return whether bytes beyond ASCII stand mostly beside letters of ASCII, as single accented letters do."""
    beyond = [place for place, byte in enumerate(sample) if byte >= _ASCII_BYTES]
    beside = sum(any(sample[at : at + 1].isalpha() for at in (place - 1, place + 1) if at >= 0) for place in beyond)
    return 2 * beside >= len(beyond)


def _separator_of(text: str, *, is_cut: bool) -> str:
    """Return the separator that divides all rows of the sample alike, into the most fields; the first of several."""
    lines = list(io.StringIO(text.removeprefix("\ufeff"), newline=""))
    num_fields = {separator: _num_fields(lines, separator, is_cut=is_cut) for separator in _SEPARATORS}
    most = max(num_fields.values())
    return next(separator for separator, number in num_fields.items() if number == most) if most > 1 else ","


def _num_fields(lines: list[str], separator: str, *, is_cut: bool) -> int:
    """Return into how many fields a separator divides every whole row of the sample; 0 if not all alike."""
    rows: list[list[str]] = []
    try:
        rows.extend(row for row in islice(csv.reader(lines, delimiter=separator, strict=True), _SAMPLE_ROWS) if row)
    except csv.Error:
        if not is_cut:
            return 0
    else:
        rows = rows[:-1] if is_cut and 1 < len(rows) < _SAMPLE_ROWS else rows
    return len(rows[0]) if rows and len({len(row) for row in rows}) == 1 else 0
