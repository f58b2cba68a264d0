"""Sends a request to a URL that a tenant gave: to a checked address, for a limited time, reading little of the answer.

A name is looked up once, every address that it has is checked, and the connection goes to a checked one, so that a
second answer of the name's server changes nothing. The certificate is still held against the name. Knows no SQL.
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
"""For all of a request: the look-up of the name, the connection, and the answer as far as it is read."""
ANSWER_BYTES = 500
"""Of an answer's body, kept for the log; no more of it is read."""
_LOOKUPS = 64  # at once; one that its server draws out holds a thread for longer than its request

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a request."""

    milliseconds: int
    status_code: int | None = None
    text: str | None = None
    """The beginning of the body."""
    error: str | None = None
    """Why there is no answer, as a sentence."""
    retry_after: timedelta | None = None

    @property
    def is_success(self) -> bool:
        return self.status_code is not None and 200 <= self.status_code < 300


_NO_ADDRESS = (
    "the name stands for no address that may be sent to: it is unknown, or leads into a private network; operators "
    "allow networks with TOKENMILL_WEBHOOK_NETWORKS"
)
"""One answer for both: a tenant is not told which names there are inside."""


class RefusedAddressError(Exception):
    """A name stands for an address that nothing may be sent to."""


class Sender:
    """Makes requests on an event loop, each on a connection of its own: one is good for the name it was opened for."""

    def __init__(
        self,
        networks: Sequence[Network],
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        seconds: float = SECONDS,
    ) -> None:
        """`networks` may be sent into beside public addresses; `tls` is the system's trust without it."""
        self._networks = networks
        self._lookups = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="lookup")
        self._resolve = resolve or self._look_up
        self._tls = tls
        self._seconds = seconds

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Send a request and return what came of it, a failure too."""
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
        reached: httpx.ConnectError | None = None
        for address in await self._addresses(url):
            try:
                return await self._post_to(address, url, body, headers)
            except httpx.ConnectError as error:
                reached = error
        assert reached is not None, "a name without addresses is an error of the look-up"
        raise reached

    async def _post_to(
        self, address: Address, url: httpx.URL, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, bytes, timedelta | None]:
        import httpx  # noqa: PLC0415 - see `post`

        assert self._tls is not None
        # Environment variables might name a proxy, which would look the name up again.
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
        """Return where to connect. Raises RefusedAddressError where any of a name's addresses is not allowed."""
        port = url.port or (443 if url.scheme == "https" else 80)
        found = await self._resolve(url.raw_host.decode("ascii").strip("[]"), port)
        if not all(is_allowed(address, self._networks) for address in found):
            raise RefusedAddressError
        return found

    async def _look_up(self, host: str, port: int) -> Sequence[Address]:
        lookup = asyncio.get_running_loop().run_in_executor(self._lookups, _addresses_of, host, port)
        return await lookup

    def close(self) -> None:
        """Let go of threads; look-ups under way end by themselves."""
        self._lookups.shutdown(wait=False, cancel_futures=True)


_HEADERS = {
    "content-type": "application/json",
    "user-agent": "tokenmill-webhooks",
    "accept": "*/*",
    "accept-encoding": "identity",
    "connection": "close",
}


def _addresses_of(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    # A scope, as in fe80::1%eth0, is of addresses that are not allowed anyway.
    return list(dict.fromkeys(ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))


def _since(began: float) -> int:
    return round(1000 * (time.monotonic() - began))


def _reason(error: Exception) -> str:
    """Return a sentence of one line; some of the errors have no words of their own."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:ANSWER_BYTES] if words else type(error).__name__


def _retry_after(given: str) -> timedelta | None:
    """Read seconds; a date is not asked for often enough to be worth a clock."""
    return timedelta(seconds=int(given)) if given.isascii() and given.isdecimal() and len(given) < 7 else None
