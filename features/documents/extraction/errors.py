"""Every way in which a document or a schema is refused.

Knows no parser and no caller: codes are for programs, messages for people.

ExtractionError
├── DocumentError   one document cannot be read; the others go on
├── SchemaError     what is asked for is not a schema that can be asked
├── PassageError    a text cannot be cut as it is asked for
└── RetrievalError  what is searched was made in another way, or cannot be searched so
"""

from __future__ import annotations

from enum import StrEnum


class DocumentCode(StrEnum):
    """Why a document was not read."""

    EMPTY = "empty"  # no bytes
    UNSUPPORTED_FORMAT = "unsupported_format"
    NOT_TEXT = "not_text"  # a text format in no encoding that is read
    TRUNCATED = "truncated"  # the end of the file is missing
    DAMAGED = "damaged"
    NO_TEXT = "no_text"  # it was read, and has nothing but pictures and blanks
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
    """A document that cannot be read; `page` counts from 0, None where it is not about one."""

    def __init__(self, code: DocumentCode, message: str, page: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.page = page


class SchemaError(ExtractionError):
    """A schema that cannot be asked; `path` leads to the part of it that is meant."""

    def __init__(self, message: str, path: tuple[str, ...] = ()) -> None:
        super().__init__(f"{'.'.join(path)}: {message}" if path else message)
        self.message = message
        self.path = path


class PassageError(ExtractionError):
    """Limits of passages that cannot be kept."""


class RetrievalError(ExtractionError):
    """Parts of an index that do not go together, or a search that does not go with it."""
