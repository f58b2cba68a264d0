"""Tests of documents whose errors contain what a database cannot store: they fail alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.documents.parsing import parse
from features.documents.extraction.errors import DocumentCode, DocumentError
from features.documents.states import ExtractionState
from features.documents.tables import CollectionDocument, Extraction
from tests.features.documents import answering
from tests.features.documents.papers import GOOD


def test_a_document_whose_error_quotes_a_nul_fails_alone(
    session: Session, make_extraction: Any, run: Callable[[Extraction], Extraction], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trip(content: bytes, name: str, limits: Limits) -> Document:
        if name == "mail.txt":
            raise DocumentError(DocumentCode.NESTED_TOO_DEEPLY, "the mail a\0b.eml is in too many others")
        return parse(content, name, limits)

    monkeypatch.setattr(answering, "parse", trip)
    extraction = run(make_extraction({"mail.txt": "x", "a.txt": GOOD}))
    assert (extraction.state, extraction.failed_codes) == (ExtractionState.COMPLETED, {"nested_too_deeply": 1})
    error = session.scalars(select(CollectionDocument.error).order_by(CollectionDocument.number)).first()
    assert error is not None
    assert error["message"] == "the mail a\N{REPLACEMENT CHARACTER}b.eml is in too many others"
