"""Sends a request to a tenant's URL: to a checked address, with a timeout, reading little of the answer.

A host name is resolved once, all its addresses are checked, and the connection goes to a checked one, which prevents
DNS rebinding. The certificate is still verified against the host name.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

from features.webhooks.addresses import Address, Network, is_allowed

if TYPE_CHECKING:
    import ssl

    import httpx

SECONDS = 15.0
"""Timeout of a whole request: resolving the name, connecting, and reading the answer."""
ANSWER_BYTES = 500
"""Bytes of an answer's body that are read and logged."""
_LOOKUPS = 64  # concurrent; a slow name server can hold a thread for longer than its request

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a request."""

    milliseconds: int
    status_code: int | None = None
    text: str | None = None
    """The start of the body."""
    error: str | None = None
    """Why there is no answer, as a sentence."""
    retry_after: timedelta | None = None

    @property
    def is_success(self) -> bool:
        return self.status_code is not None and 200 <= self.status_code < 300


_NO_ADDRESS = (
    "the name has no allowed address: it is unknown, or leads into a private network; operators allow networks with "
    "TOKENMILL_WEBHOOK_NETWORKS"
)
"""The same message for both cases, so that tenants cannot probe internal names."""


class RefusedAddressError(Exception):
    """A name resolves to an address that is not allowed."""


class Sender:
    """Makes requests on an event loop, each on a new connection, as a connection is only valid for its host name."""

    def __init__(
        self,
        networks: Sequence[Network],
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        seconds: float = SECONDS,
    ) -> None:
        """`networks` are allowed beside public addresses; `tls` defaults to the system's trust store."""
        self._networks = networks
        self._lookups = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="lookup")
        self._resolve = resolve or self._look_up
        self._tls = tls
        self._seconds = seconds

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request and return the result, also for failures."""
        import httpx  # noqa: PLC0415 - 0.1 s to import, and most control workers never send one

        began = time.monotonic()
        try:
            async with asyncio.timeout(self._seconds):
                status_code, content, retry_after = await self._post(httpx.URL(url), body, headers)
        except TimeoutError:
            return Answer(milliseconds=_since(began), error=f"no answer within {self._seconds:g} s")
        except (RefusedAddressError, socket.gaierror):
            return Answer(milliseconds=_since(began), error=_NO_ADDRESS)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError, ValueError) as error:
            return Answer(milliseconds=_since(began), error=_reason(error))
        return Answer(
            milliseconds=_since(began),
            status_code=status_code,
            text=content.decode(errors="replace").replace("\x00", "\ufffd"),
            retry_after=retry_after,
        )

    async def _post(
        self, url: httpx.URL, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes, timedelta | None]:
        import httpx  # noqa: PLC0415 - see `post`

        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        failure: httpx.ConnectError | None = None
        for address in await self._addresses(url):
            try:
                return await self._post_to(address, url, body, headers)
            except httpx.ConnectError as error:
                failure = error
        assert failure is not None, "a name without addresses is an error of the look-up"
        raise failure

    async def _post_to(
        self, address: Address, url: httpx.URL, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes, timedelta | None]:
        import httpx  # noqa: PLC0415 - see `post`

        assert self._tls is not None
        # Environment variables might name a proxy, which would resolve the name again.
        async with httpx.AsyncClient(verify=self._tls, trust_env=False, follow_redirects=False, timeout=None) as client:
            request = client.build_request(
                "POST",
                url.copy_with(host=str(address)),
                content=body,
                headers={**_HEADERS, **headers, "host": url.netloc.decode("ascii")},
                extensions={"sni_hostname": url.raw_host.decode("ascii").strip("[]")},
            )
            answer = await client.send(request, stream=True)
            try:
                content = bytearray()
                async for piece in answer.aiter_raw():
                    content += piece
                    if len(content) >= ANSWER_BYTES:
                        break
            finally:
                await answer.aclose()
        return answer.status_code, bytes(content[:ANSWER_BYTES]), _retry_after(answer.headers.get("retry-after", ""))

    async def _addresses(self, url: httpx.URL) -> Sequence[Address]:
        """Return the addresses to connect to. Raise RefusedAddressError if any of them is not allowed."""
        port = url.port or (443 if url.scheme == "https" else 80)
        addresses = await self._resolve(url.raw_host.decode("ascii").strip("[]"), port)
        if not all(is_allowed(address, self._networks) for address in addresses):
            raise RefusedAddressError
        return addresses

    async def _look_up(self, host: str, port: int) -> Sequence[Address]:
        lookup = asyncio.get_running_loop().run_in_executor(self._lookups, _addresses_of, host, port)
        return await lookup

    def close(self) -> None:
        """Release the threads; look-ups in progress end by themselves."""
        self._lookups.shutdown(wait=False, cancel_futures=True)


_HEADERS = {
    "content-type": "application/json",
    "user-agent": "tokenmill-webhooks",
    "accept": "*/*",
    "accept-encoding": "identity",
    "connection": "close",
}


def _addresses_of(host: str, port: int) -> list[Address]:
    entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A scope, as in fe80::1%eth0, occurs only in addresses that are not allowed anyway.
    return list(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries))


def _since(began: float) -> int:
    return round(1000 * (time.monotonic() - began))


def _reason(error: Exception) -> str:
    """Return the error in one line; some errors have no message."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:ANSWER_BYTES] if words else type(error).__name__


def _retry_after(header: str) -> timedelta | None:
    """Parse seconds; dates are too rare to support."""
    return timedelta(seconds=int(header)) if header.isascii() and header.isdecimal() and len(header) < 7 else None
