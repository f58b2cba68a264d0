"""A tokenizer that any test can count by, and texts with headings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from extraction.documents.document import Heading

_TOKEN = re.compile(r"\w{1,4}|[^\w\s]")


def count(text: str) -> int:
    """Return how many tokens a text has: up to four letters, or a sign."""
    return len(_TOKEN.findall(text))


def with_headings(parts: Sequence[str]) -> tuple[str, list[Heading]]:
    """Return a text of Markdown's parts, and its headings without their signs."""
    text, headings = "", []
    for part in parts:
        level = len(part) - len(part.lstrip("#"))
        content = part.lstrip("# ")
        if level:
            headings.append(Heading(start=len(text), end=len(text) + len(content), level=level))
        text += content + "\n\n"
    return text, headings
