"""How long lines that need no model take a reader: what is expected before any was measured, and how long is a turn."""

from __future__ import annotations

from jobs.lines.document_bodies import CUT_ENDPOINT, GROUND_ENDPOINT, READ_ENDPOINT
from jobs.lines.passage_bodies import FIND_ENDPOINT

TURN_MILLISECONDS = 4000
"""Of reading, after which a chunk's other lines are given back: what others wait for is a turn, and a document that was
begun. A chunk costs three transactions, some 30 ms."""

USUAL_MILLISECONDS = {READ_ENDPOINT: 100, GROUND_ENDPOINT: 50, CUT_ENDPOINT: 500, FIND_ENDPOINT: 10}
"""Of one line, by its endpoint."""
