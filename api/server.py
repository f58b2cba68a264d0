"""Serves the application over HTTP/1.1 to peers that may be slow, many or hostile.

Why it is a protocol of uvicorn: docs/adr/0013.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from dataclasses import dataclass, field
from typing import Any

import anyio
import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from api.errors import error_response, retry_later
from api.logs import LineBudget
from api.middleware.guard import UPLOAD_PATHS
from jobs.settings import Settings

GRACEFUL_SECONDS = 5
"""Time for open requests to end after a signal to stop."""
CLOSING_SECONDS = 2
"""Time after that for polls of Postgres and the store, which a silent server would block for minutes."""
TICK_SECONDS = 0.5
MOST_DESCRIPTORS = 65_536
RESERVED_DESCRIPTORS = 256
"""For Postgres, the object store and connections accepted at once."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Connections:
    """The state that the connections of one server share: its limits, and which of them wait for a request."""

    max_connections: int
    backlog: int
    header_seconds: float
    idle_seconds: float
    stall_seconds: float
    waiting: dict[BoundedHttp, None] = field(default_factory=dict)
    """Connections without work in progress, longest wait first."""
    _lines: LineBudget = field(default_factory=lambda: LineBudget(burst=1, lines_a_second=0.1))

    def make_room(self, newcomer: BoundedHttp) -> bool:
        """Close the connection that has waited longest for a request; return False if there is none."""
        num_unsaid = self._lines.spend()
        if num_unsaid is not None:
            logger.warning("connections full max_connections=%d num_unsaid=%d", self.max_connections, num_unsaid)
        idle = (one for one in self.waiting if one is not newcomer and not one.is_sending())
        oldest = next(idle, None)
        if oldest is None:
            return False
        oldest.drop()
        return True


def connections_of(settings: Settings) -> Connections:
    """Return the limits of the settings, reduced to what this process's descriptors allow."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    reserved = min(RESERVED_DESCRIPTORS, allowed // 2)
    affordable = allowed - reserved
    if affordable < settings.api_max_connections:
        logger.warning("fewer connections than set max_connections=%d descriptors=%d", affordable, allowed)
    return Connections(
        max_connections=min(settings.api_max_connections, affordable),
        backlog=reserved // 2,
        header_seconds=settings.api_header_seconds,
        idle_seconds=settings.api_idle_seconds,
        stall_seconds=settings.api_stall_seconds,
    )


class ServerConfig(uvicorn.Config):
    """uvicorn's configuration with our protocol and its shared state."""

    def __init__(self, app: ASGIApp, connections: Connections, *, host: str = "127.0.0.1", port: int) -> None:
        self.shared = connections
        super().__init__(
            app,
            host=host,
            port=port,
            http=BoundedHttp,
            ws="none",
            lifespan="on",
            log_config=None,  # its loggers propagate to ours
            access_log=False,
            backlog=connections.backlog,  # also how many asyncio accepts before it does anything else
            timeout_keep_alive=connections.idle_seconds,  # type: ignore[arg-type]  # a timer takes fractions too
            timeout_graceful_shutdown=GRACEFUL_SECONDS,
        )


class BoundedHttp(H11Protocol):
    """uvicorn's protocol with a time limit on every wait for a peer.

    A request's head must arrive within `header_seconds`; the peer must read an answer without a pause of
    `stall_seconds`, and send the rest of a body within the same time once its request is answered. With too many
    connections, the one that has waited longest for a request is closed.
    """

    def __init__(
        self,
        config: ServerConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._shared = config.shared
        self._read_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._await_request(self._shared.header_seconds)
        if len(self.connections) > self._shared.max_connections and not self._shared.make_room(self):
            self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn leaves it armed after an error
        self._stop_awaiting()
        self._stop_write_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_answering():
            self._stop_read_timer()
            if not self._awaits_body():
                self._shared.waiting.pop(self, None)
        elif self._read_timer is None:  # more of the same head does not extend the timer
            self._await_request(self._shared.header_seconds)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._abort_after_stall()
        elif self._is_answering():  # the next request, which arrived before this answer's end
            if self._awaits_body():
                self._shared.waiting[self] = None
        else:
            self._shared.waiting[self] = None
            self._watch_the_rest()
            if self.conn.their_state is not h11.IDLE:  # the rest of an unread body
                self._await_request(self._shared.stall_seconds)

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP; once an answer has begun, or its request is answered, only close the connection.

        h11 refuses a second answer with a traceback, so its state is checked here.
        """
        if self._is_answering():  # the application sees a disconnect, and its output is discarded
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        self.transport.close()
        self._abort_after_stall()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_after_stall()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_after_stall()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()
        if not self._is_answering():
            self._watch_the_rest()

    def is_sending(self) -> bool:
        """Tell whether the peer has not yet read all of its answer."""
        return self.transport.get_write_buffer_size() > 0

    def drop(self) -> None:
        """End this connection at once; its peer has not sent a complete request."""
        self._stop_awaiting()
        self.connections.discard(self)  # now, not only when the loop gets to it
        self.transport.abort()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _awaits_body(self) -> bool:
        """Tell whether the work has not begun: all bodies except uploads are read to the end first."""
        return bool(self.cycle.more_body) and UPLOAD_PATHS.fullmatch(self.cycle.scope["path"]) is None

    def _await_request(self, seconds: float) -> None:
        self._stop_awaiting()
        self._shared.waiting[self] = None
        self._read_timer = self.loop.call_later(seconds, self.drop)

    def _stop_awaiting(self) -> None:
        self._shared.waiting.pop(self, None)
        self._stop_read_timer()

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _abort_after_stall(self) -> None:
        self._stop_write_timer()
        self._watch_writing(self.transport.get_write_buffer_size())

    def _watch_the_rest(self) -> None:
        """Watch the unread rest of a complete answer, if it is too small to pause writing."""
        if self._write_timer is None and self.is_sending():
            self._abort_after_stall()

    def _watch_writing(self, num_bytes: int) -> None:
        self._write_timer = self.loop.call_later(self._shared.stall_seconds, self._abort_unless_read, num_bytes)

    def _abort_unless_read(self, num_bytes: int) -> None:
        """Abort a peer that has read nothing since the last check; a slow reader may take any time."""
        left = self.transport.get_write_buffer_size()
        if left == 0 and not self.transport.is_closing():
            self._stop_write_timer()
        elif left < num_bytes:
            self._watch_writing(left)
        else:
            self.transport.abort()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _refuse(self) -> None:
        self.connections.discard(self)
        message = f"The server keeps {self._shared.max_connections} connections, and all are in use. Send it again."
        answer = error_response(503, message, code="service_unavailable", headers=retry_later())
        head = b"".join(b"%s: %s\r\n" % pair for pair in [*answer.raw_headers, (b"connection", b"close")])
        self.transport.write(b"HTTP/1.1 503 Service Unavailable\r\n" + head + b"\r\n" + bytes(answer.body))
        self.transport.close()


def raise_descriptor_limit() -> None:
    """Raise this process's limit of descriptors as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


class CalmServer(uvicorn.Server):
    """uvicorn's server with a longer poll interval for the stop signal, and a time limit on shutdown."""

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # 0: sets the date of answers, as every tenth tick of uvicorn does
            await asyncio.sleep(TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with anyio.move_on_after(GRACEFUL_SECONDS + CLOSING_SECONDS):
            await super().shutdown(sockets)


def serve(app: ASGIApp, settings: Settings, *, host: str, port: int) -> None:
    """Serve until a signal to stop; uvicorn raises that signal again once everything is closed."""
    raise_descriptor_limit()
    CalmServer(ServerConfig(app, connections_of(settings), host=host, port=port)).run()
