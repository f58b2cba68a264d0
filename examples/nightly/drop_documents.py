"""Put receipts and invoices into a day's folder, as a scanner would; the same seed gives the same documents.

    python drop_documents.py FOLDER [--seed 1] [--count 12] [--day 2026-11-20]

A file appears complete or not at all, since a run may list the folder at any moment.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path

from examples.document_layouts import Kind
from examples.documents import Document, draw_facts, lay_out

VENDORS = {"Eklund Paints": "CHF", "Farvenen Chemicals Ltd": "USD", "Keller Bakery": "EUR", "Walsh Timber": "GBP"}
"""Vendors, each with its own currency."""
KINDS = (Kind.RECEIPT, Kind.INVOICE)


def documents(seed: int) -> Iterator[Document]:
    """Yield an endless stream of documents, the same for the same seed."""
    rng = random.Random(f"nightly/{seed}")
    while True:
        facts = draw_facts(rng)
        if facts.kind in KINDS:
            vendor = rng.choice(list(VENDORS))
            yield lay_out(replace(facts, vendor=vendor, currency=VENDORS[vendor]), rng)


def drop(folder: Path, *, day: date, seed: int, count: int) -> Path:
    """Write a file of documents and return its path."""
    target = folder / f"{day}" / f"scan-{seed:04d}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    hidden = target.with_name(f".{target.name}")  # runs skip such names
    rows = ({"id": f"{seed:04d}-{number:03d}", "text": each.text} for number, each in enumerate(documents(seed)))
    hidden.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in islice(rows, count)))
    return hidden.rename(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=12)
    parser.add_argument("--day", type=date.fromisoformat, default=datetime.now(UTC).date(), help="[default: today]")
    arguments = parser.parse_args()
    print(drop(arguments.folder, day=arguments.day, seed=arguments.seed, count=arguments.count))


if __name__ == "__main__":
    main()
