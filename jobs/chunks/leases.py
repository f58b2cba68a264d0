"""Leases: the claims on chunks. A chunk is leased while one worker has it, and the lease ends with that state.

They are made in `claiming`, and end in `lease_ends`: who gives one up says in which state the chunk goes on.
"""

from __future__ import annotations

from jobs.claims.claims import HeldRows
from jobs.claims.statements import ClaimColumns
from jobs.tables import Chunk

LEASES = HeldRows(
    Chunk,
    columns=ClaimColumns(fence="fence", owner="worker_id", until="lease_until"),
    ends_with_state=True,
)
