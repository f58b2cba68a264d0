"""Plain text, Markdown and JSON, whose text is the file itself."""

from __future__ import annotations

import codecs
import re

import orjson

from features.documents.extraction.documents.builder import TextBuilder
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.formats import Format
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.errors import DocumentCode, DocumentError

PARSER = "plain 1"

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_HEADING = re.compile(r"^ {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$", re.M)
_FENCE = re.compile(r"^ {0,3}(```|~~~).*?(?:^ {0,3}\1|\Z)", re.M | re.S)


def read_text(content: bytes, limits: Limits) -> Document:
    """Read plain text."""
    text, notes = decode(content)
    return _whole(text, limits).build(Format.TEXT, PARSER, notes)


def read_json(content: bytes, limits: Limits) -> Document:
    """Read JSON: the text of the file, which must be valid JSON."""
    text, notes = decode(content)
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DocumentError(DocumentCode.DAMAGED, f"this is not JSON: {error}") from None
    return _whole(text, limits).build(Format.JSON, PARSER, notes)


def read_markdown(content: bytes, limits: Limits) -> Document:
    """Read Markdown: the text of the file, with its headings."""
    text, notes = decode(content)
    fences = [match.span() for match in _FENCE.finditer(text)]
    builder, done = TextBuilder(limits), 0
    for match in _HEADING.finditer(text):
        if any(start <= match.start() < end for start, end in fences):
            continue
        builder.text(text[done : match.start(2)])
        start, done = builder.length, match.end(2)
        builder.text(match[2])
        builder.heading(start, level=len(match[1]))
    builder.text(text[done:])
    return builder.build(Format.MARKDOWN, PARSER, notes)


def decode(content: bytes, charset: str | None = None) -> tuple[str, tuple[str, ...]]:
    """Return the text, and a note if its encoding was guessed. Raises DocumentError if it is not text."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return _decoded(content[len(mark) :], encoding), ()
    if charset is not None and charset.lower() not in {"utf-8", "us-ascii"} and _is_known(charset):
        return _decoded(content, charset), ()
    try:
        return _checked(content.decode()), ()
    except UnicodeDecodeError:
        return _decoded(content, "cp1252"), ("read as Windows-1252: it is not UTF-8",)


def _decoded(content: bytes, encoding: str) -> str:
    try:
        return _checked(content.decode(encoding))
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is invalid in {encoding}; save the file as UTF-8"
        raise DocumentError(DocumentCode.NOT_TEXT, message) from None


def _checked(text: str) -> str:
    match = _CONTROL.search(text)
    if match:
        message = (
            f"character {match.start()} is U+{ord(match[0]):04X}, which text does not contain; is this another format?"
        )
        raise DocumentError(DocumentCode.NOT_TEXT, message)
    return text


def _is_known(charset: str) -> bool:
    try:
        b" ".decode(charset)
    except UnicodeError:  # the encoding has no blank
        return True
    except LookupError:  # unknown, or not a text encoding, such as hex
        return False
    return True


def _whole(text: str, limits: Limits) -> TextBuilder:
    builder = TextBuilder(limits)
    builder.text(text)
    return builder
