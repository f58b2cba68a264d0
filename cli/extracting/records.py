"""The records of an extraction, and the texts of its documents, page by page from a service."""

from __future__ import annotations

from collections.abc import Iterator

from cli.calls import Calls, named
from cli.service.options import say

_PAGE = 1000
_TEXT_CHARACTERS = 100_000
"""Most that a service returns at once."""


def record_pages(calls: Calls, extraction_id: str) -> Iterator[bytes]:
    """Yield the current records of an extraction as lines, a page at a time."""
    import httpx

    path, after, has_more, is_final = named("extractions", extraction_id, "/results"), "0", True, True
    while has_more:
        params = {"after": after, "limit": _PAGE}
        answer = calls.client.get(path, cast_to=httpx.Response, options={"params": params})
        yield answer.content
        after, has_more = answer.headers["x-next-after"], answer.headers["x-has-more"] == "true"
        is_final = answer.headers.get("x-is-final") != "false"  # older servers have final records only
    if not is_final:
        say("the extraction is not completed: records may be missing, and provisional ones may change")


def text_of_document(calls: Calls, collection_id: str, document_id: str) -> str:
    """Return the text of a document that was read, into which the spans of its record are offsets."""
    path = named("collections", collection_id, f"/documents/{document_id}/text")
    parts, start, end = [], 0, 1
    while start < end:
        part = calls.get(path, start=start, limit=_TEXT_CHARACTERS)
        parts.append(part["text"])
        start, end = part["end"], part["num_characters"]
    return "".join(parts)
