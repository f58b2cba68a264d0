"""Reading times of lines without a model: defaults before any was measured, and the length of a turn."""

from __future__ import annotations

from jobs.lines.document_bodies import CUT_ENDPOINT, GROUND_ENDPOINT, READ_ENDPOINT
from jobs.lines.passage_bodies import FIND_ENDPOINT

TURN_MILLISECONDS = 4000
"""Reading time after which a chunk's other lines are given back: others wait for at most one turn and the current
document. A chunk costs three transactions, some 30 ms."""

USUAL_MILLISECONDS = {READ_ENDPOINT: 100, GROUND_ENDPOINT: 50, CUT_ENDPOINT: 500, FIND_ENDPOINT: 10}
"""Per line, by endpoint."""
