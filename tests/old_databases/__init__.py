"""Databases of before the baseline, with rows of every kind: at 0061, and at 0069 with the roles that it had.

Each was made by the release of then: `tokenmill up` with the demo model, which was killed while a batch, an extraction
and a run were under way; then dumped. The one at 0061 was taken back from the other by its migrations.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import psycopg

from jobs.access import ROLES

REVISIONS = ("0061", "0069")
TENANT = "default"
LIVE_BATCH = "batch_01a21c857d96781e9bdd150cd0a45277"
LIVE_EXTRACTION = "extraction_01a21c857b6e7d659c73c8522965cb19"
LIVE_RUN = "run_01a21c859b4c759d8a9cab48222c0a6b"
ENDED_EXTRACTION = "extraction_01a21c832ddf75d993df34810a86d8d2"

_FOLDER = Path(__file__).parent
_IN_TIME = """
    UPDATE batch SET expires_at = now() + interval '1 day';
    UPDATE chunk SET expires_at = now() + interval '1 day';
    UPDATE extraction SET expires_at = now() + interval '1 day'
"""


def live_input() -> bytes:
    """Return the input of the live batch."""
    return b"\n".join(json.dumps(_request(number)).encode() for number in range(400))


def _request(number: int) -> dict[str, object]:
    messages = [{"role": "user", "content": f"Hello {number}"}]
    body = {"model": "demo", "messages": messages, "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    return {"custom_id": f"c{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def load(url: str, revision: str) -> None:
    """Make an old database of an empty one, as its superuser; what is under way there has a day left."""
    with psycopg.connect(url, autocommit=True) as connection:
        for role in ROLES:
            if connection.execute("SELECT to_regrole(%s)", [role]).fetchone() == (None,):
                connection.execute(f"CREATE ROLE {role} LOGIN".encode())
        connection.execute(lzma.decompress((_FOLDER / f"{revision}.sql.xz").read_bytes()))
        connection.execute(b"SET search_path = public")
        connection.execute(_IN_TIME.encode())
