"""One request to a server and what became of it: bounded in time and bytes, whatever the server does.

Proxies of the environment are not used, and redirects are not followed. A request that ends in any way but with a
whole answer closes its connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import httpx
import orjson

from jobs.settings import MIB
from workers.remote.reading import Awaited, verdict_of_answer
from workers.remote.statuses import verdict_of_status
from workers.remote.verdicts import Away, Spoilt, Verdict

MAX_ANSWER_BYTES = 64 * MIB
"""Bytes of an answer that are read."""
ANSWER_SECONDS = 600.0
"""Default of how long a whole answer may take."""
_CONNECT_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is and who asks."""

    url: str
    """Of its API, as `http://host:8000/v1`."""
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a server may take, in seconds."""

    answer_seconds: float = ANSWER_SECONDS
    """For a whole answer."""
    stall_seconds: float = 60.0
    """Between two pieces of an answer that has begun."""
    away_seconds: float = 30.0
    """How long lines wait for a server that is away, before they are given back."""
    look_seconds: float = 1.0
    """Between the first two looks whether it is back; then twice as long each time, to `most_look_seconds`."""
    most_look_seconds: float = 30.0


class TooLargeError(Exception):
    """An answer has more than MAX_ANSWER_BYTES."""


def open_client(address: Address, *, patience: Patience) -> httpx.AsyncClient:
    """Return a client of one server; its connections are as many as its requests."""
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "tokenmill"}
    if address.key is not None:
        headers["Authorization"] = f"Bearer {address.key}"
    return httpx.AsyncClient(
        base_url=address.url,
        headers=headers,
        follow_redirects=False,
        trust_env=False,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=4.0),
        timeout=httpx.Timeout(patience.stall_seconds, connect=_CONNECT_SECONDS, read=None, pool=None),
    )


async def exchange(
    client: httpx.AsyncClient, path: str, body: Mapping[str, Any], *, expected: Awaited, patience: Patience
) -> Verdict:
    """Send a request and return what the answer means."""
    request_id = f"tokenmill-{uuid4().hex}"
    headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
    try:
        async with asyncio.timeout(patience.answer_seconds):
            status, received, content = await post(client, path, orjson.dumps(body), headers, patience)
    except TimeoutError:
        return Spoilt(reason=f"the server gave no whole answer within {patience.answer_seconds:g} s")
    except TooLargeError:
        return Spoilt(reason=f"the server's answer has more than {MAX_ANSWER_BYTES:,} bytes", is_lasting=True)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        return Away(reason=_why_unreachable(error))
    except httpx.TransportError as error:
        return Spoilt(reason=f"the connection broke before the answer was whole ({type(error).__name__})")
    now = datetime.now(UTC)
    if status != 200:
        return verdict_of_status(status, received, content, now=now)
    return verdict_of_answer(content, expected, request_id=request_id, now=now)


async def post(
    client: httpx.AsyncClient, path: str, content: bytes, headers: Mapping[str, str], patience: Patience
) -> tuple[int, Mapping[str, str], bytes]:
    """Return status, headers and content. Raise TimeoutError, TooLargeError, httpx.TransportError."""
    async with client.stream("POST", path, content=content, headers=headers) as response:
        return response.status_code, response.headers, await _read(response, patience)


async def _read(response: httpx.Response, patience: Patience) -> bytes:
    content = bytearray()
    pieces = aiter(response.aiter_raw())  # raw: a packed answer, which was not asked for, could be any size
    while True:
        async with asyncio.timeout(patience.stall_seconds):
            piece = await anext(pieces, None)
        if piece is None:
            return bytes(content)
        content += piece
        if len(content) > MAX_ANSWER_BYTES:
            raise TooLargeError


def _why_unreachable(error: httpx.TransportError) -> str:
    refused = _refused_certificate(error)
    if refused is not None:
        return f"the server's certificate is not valid: {refused.verify_message}"
    return f"the server cannot be reached: {error or type(error).__name__}"


def is_refused_certificate(error: Exception) -> bool:
    """Return whether a connection failed as the server's certificate is not valid."""
    return _refused_certificate(error) is not None


def _refused_certificate(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error
