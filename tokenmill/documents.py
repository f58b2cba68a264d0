"""Texts of documents and their passages, in a user's own process: `from tokenmill.documents import DocumentReader`.

Not available in a process with another package named `confined`, `features` or `protocol`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenmill.importing import make_importable

if TYPE_CHECKING:
    from features.documents.extraction.documents.process.document_reader import DocumentReader
    from features.documents.extraction.passages.cutting import Cutter
    from features.documents.extraction.passages.token_count import TokenCount

__all__ = ["Cutter", "DocumentReader", "TokenCount"]

_HOME = {
    "Cutter": "features.documents.extraction.passages.cutting",
    "DocumentReader": "features.documents.extraction.documents.process.document_reader",
    "TokenCount": "features.documents.extraction.passages.token_count",
}
make_importable("confined", "features", "protocol")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
