"""Shared parts of tests of questions: a field, a window, and an answer that was refused."""

from __future__ import annotations

from features.documents.extraction.course.line_results import LineResult
from features.documents.extraction.passes.excerpts import Window, likely_tokens

TEXT = {"type": "string"}
WINDOW = Window(max_tokens=4096, count=likely_tokens)
REFUSED = LineResult(error={"code": "context_length_exceeded", "message": "the prompt is too long"})
