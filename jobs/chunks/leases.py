"""Leases: claims on chunks. A chunk is leased while one worker owns it; the lease ends with that state.

Leases begin in `claiming` and end in `lease_ends`; whoever ends one chooses the chunk's next state.
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
