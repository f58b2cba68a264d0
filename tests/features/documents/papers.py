"""Documents for tests, valid ones and others."""

from __future__ import annotations

from tests.features.documents.answering import FLAKY

GOOD = "vendor: Ash Ltd\ntotal: 12.50"
PAPERS = {"a.txt": GOOD, "b.txt": f"vendor: Birch {FLAKY} Ltd\ntotal: 3.00", "empty.txt": "", "c.txt": "CRASH\n" + GOOD}
