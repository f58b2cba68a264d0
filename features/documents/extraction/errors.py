"""Errors for documents and schemas that are refused: codes are for programs, messages for people.

ExtractionError
├── DocumentError   one document cannot be read; others are not affected
├── SchemaError     the schema cannot be asked
├── PassageError    a text cannot be cut as requested
└── RetrievalError  the parts of an index do not match, or do not support the search
"""

from __future__ import annotations

from enum import StrEnum


class DocumentCode(StrEnum):
    """Why a document was not read."""

    EMPTY = "empty"  # no bytes
    UNSUPPORTED_FORMAT = "unsupported_format"
    NOT_TEXT = "not_text"  # a text format in an unsupported encoding
    TRUNCATED = "truncated"  # the end of the file is missing
    DAMAGED = "damaged"
    NO_TEXT = "no_text"  # it has only pictures and whitespace
    ENCRYPTED = "encrypted"
    TOO_LARGE = "too_large"  # the file, or the text in it
    TOO_MANY_PAGES = "too_many_pages"
    TOO_MANY_ROWS = "too_many_rows"
    UNPACKS_TOO_LARGE = "unpacks_too_large"
    NESTED_TOO_DEEPLY = "nested_too_deeply"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    PARSER_DIED = "parser_died"
    UNKNOWN_VERSION = "unknown_version"  # of a stored document


class ExtractionError(Exception):
    """Base of this package's errors."""


class DocumentError(ExtractionError):
    """A document cannot be read; `page` counts from 0, None if the error is not about one page."""

    def __init__(self, code: DocumentCode, message: str, page: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.page = page


class SchemaError(ExtractionError):
    """A schema cannot be asked; `path` leads to the faulty part."""

    def __init__(self, message: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"{'.'.join(path)}: {message}" if path else message)
        self.message = message
        self.path = path


class PassageError(ExtractionError):
    """Limits of passages cannot be met."""


class RetrievalError(ExtractionError):
    """Parts of an index do not match each other, or do not support a search."""
