"""Lines, collections of documents and their ends, for a tenant of a stack in containers."""

from __future__ import annotations

import json
from typing import Any

from tests.deploy.containers.composed import ROOT, until
from tests.e2e.builders import Customer, chat

SCHEMA = json.loads((ROOT / "examples/extract/invoice.schema.json").read_text())
NOTES = {
    "boats.md": b"# Boats\n\nThe ferry leaves at nine, and again at noon.",
    "garden.txt": b"Roses are cut back in March. Tulips are planted in October.",
}


def lines(count: int, **body: Any) -> list[dict[str, Any]]:
    return [chat(f"Receipt {number}\nTotal: {number}.50 EUR", **body) for number in range(count)]


def collect(customer: Customer, contents: dict[str, bytes]) -> str:
    """Make a collection of documents; return its id."""
    files = customer.client.files
    ids = [files.create(file=(name, content), purpose="user_data").id for name, content in contents.items()]
    collection = customer.call("POST", "/collections", json={"name": next(iter(contents))}).json()
    url = f"/collections/{collection['id']}/documents"
    assert customer.call("POST", url, json={"file_ids": ids}).status_code < 300
    return str(collection["id"])


def ended(customer: Customer, url: str) -> dict[str, Any]:
    def answer() -> dict[str, Any] | None:
        found: dict[str, Any] = customer.call("GET", url).json()
        return found if found["ended_at"] is not None else None

    found: dict[str, Any] = until(answer, customer.stack, seconds=300)
    return found
