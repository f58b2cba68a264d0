"""The engine process seen from its parent: start it, send requests, read progress.

spawned.py starts and ends the process, child.py runs in it, messages.py has the messages.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import Connection

from engine.config import EngineConfig
from engine.errors import EngineDied, EngineStartError
from engine.loop.intake import EngineInfo, already_running
from engine.process.messages import (
    Abort,
    AbortChildren,
    Add,
    Configure,
    DecodeError,
    Fatal,
    FromEngine,
    Progress,
    Ready,
    decode_from_engine,
    encode,
)
from engine.process.spawned import SpawnedChild
from engine.scheduling.request import NewRequest

_EXIT_WAIT_SECONDS = 5.0


class EngineProcess:
    """Own one engine process. `add` and `abort` may be called from any thread, `poll` from one at a time.

    After EngineDied the object can be started again; nothing of the old process is kept.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        start_timeout_seconds: float = 900.0,
        pipe_timeout_seconds: float = 240.0,
    ) -> None:
        """Set the time limits for becoming ready, and for waiting on the other end in the middle of a message.

        A process that has read nothing for that long is stuck: a thread of it empties the pipe even during steps.
        """
        self.config = config
        self._start_timeout_seconds = start_timeout_seconds
        self._pipe_timeout_seconds = pipe_timeout_seconds
        self._child: SpawnedChild | None = None
        self._connection: Connection | None = None
        self._info: EngineInfo | None = None
        self._has_begun = False
        self._send_lock = threading.Lock()
        self._state_lock = threading.Lock()
        self._open_children: dict[int, int] = {}

    def begin(self) -> None:
        """Start the process without waiting; it loads the model until `start` is called. Raises EngineStartError."""
        self.close()
        ours, theirs = multiprocessing.Pipe(duplex=True)
        _limit_waits(ours, self._pipe_timeout_seconds)
        self._connection = ours
        self._child = SpawnedChild(theirs)
        theirs.close()
        with suppress(OSError):  # it has already ended, and `start` reports why
            ours.send_bytes(encode(Configure(self.config)))
        self._has_begun = True

    def start(self) -> EngineInfo:
        """Start the process, unless `begin` did, and wait until the model is loaded and warm.

        Raises EngineStartError with the child's reason, or if it is not ready within the time limit.
        """
        if not self._has_begun:
            self.begin()
        self._has_begun = False
        assert self._connection is not None
        assert self._child is not None
        try:
            self._info = self._await_ready(self._connection)
        except EngineStartError:
            self.close()
            raise
        except (EOFError, OSError) as error:
            exit_code = self._child.wait(_EXIT_WAIT_SECONDS)
            self.close()
            raise EngineStartError(
                f"The engine process ended with exit code {exit_code} before it was ready; see its messages above."
            ) from error
        return self._info

    def _await_ready(self, connection: Connection) -> EngineInfo:
        if not connection.poll(self._start_timeout_seconds):
            raise EngineStartError(f"The engine was not ready after {self._start_timeout_seconds:g} s.")
        message = decode_from_engine(connection.recv_bytes())
        if isinstance(message, Fatal):
            raise EngineStartError(message.message)
        if not isinstance(message, Ready):
            raise EngineStartError(f"The engine's first message was {type(message).__name__}, not Ready.")
        return message.info

    @property
    def info(self) -> EngineInfo:
        """Return the engine's limits and properties, which it sent when it became ready."""
        assert self._info is not None, "start() first"
        return self._info

    @property
    def pid(self) -> int | None:
        """Return the process id, None if it was never started."""
        return self._child.pid if self._child else None

    @property
    def exit_code(self) -> int | None:
        """Return the exit code (negative for a signal), None while it runs."""
        return self._child.exit_code if self._child else None

    @property
    def is_alive(self) -> bool:
        """Tell whether the process runs."""
        return self._child is not None and self._child.exit_code is None

    @property
    def running_request_ids(self) -> tuple[int, ...]:
        """Return the ids of added requests that have not finished."""
        with self._state_lock:
            return tuple(self._open_children)

    def add(self, *requests: NewRequest) -> None:
        """Send requests, all of them or, if one cannot be encoded, none.

        A refusal comes back as a delta with finish_reason "error". Raises EngineDied, and InvalidRequestError for the
        id of an unfinished request or a duplicate id.
        """
        payload = encode(Add(requests))  # first: a request that cannot be encoded is not in flight
        with self._state_lock:
            added: dict[int, int] = {}
            for new in requests:
                if new.request_id in self._open_children or new.request_id in added:
                    raise already_running(new.request_id)
                added[new.request_id] = new.params.n
            self._open_children |= added
        self._send(payload)

    def abort(self, request_ids: Iterable[int]) -> None:
        """End requests at once; each still reports a delta with finish_reason "abort". Raises EngineDied."""
        self._send(encode(Abort(list(request_ids))))

    def abort_children(self, children: Iterable[tuple[int, int]]) -> None:
        """End single children, (request id, index) each; each reports "abort" as with `abort`. Raises EngineDied."""
        self._send(encode(AbortChildren(list(children))))

    def poll(self, timeout_seconds: float) -> Progress | None:
        """Return the next progress, or None after the timeout. Raises EngineDied if the process is gone."""
        connection = self._connection
        if connection is None:
            raise self._died()
        try:
            if not connection.poll(timeout_seconds):
                return None
            message = decode_from_engine(connection.recv_bytes())
        except DecodeError as error:
            raise self._died(f"its message cannot be read: {error}") from error
        except (EOFError, OSError) as error:
            raise self._died() from error
        return self._receive(message)

    def close(self, *, timeout_seconds: float = 10.0) -> None:
        """End the process, by force after the time limit, and drop its requests. Safe to call again.

        A concurrent call that waits for the process to read its message raises EngineDied.
        """
        self._has_begun = False
        connection, self._connection = self._connection, None
        child, self._child = self._child, None
        if connection is not None:
            _hang_up(connection)
        if child is not None:
            child.end(timeout_seconds)
        if connection is not None:
            with self._send_lock:  # a holder of the lock can no longer write
                connection.close()
        with self._state_lock:
            self._open_children.clear()

    def _send(self, payload: bytes) -> None:
        connection = self._connection
        if connection is None:
            raise self._died()
        try:
            with self._send_lock:
                _send_or_hang_up(connection, payload)
        except OSError as error:
            raise self._died() from error

    def _receive(self, message: FromEngine) -> Progress:
        if isinstance(message, Fatal):
            raise self._died(message.message)
        assert isinstance(message, Progress), f"unexpected {type(message).__name__}"
        with self._state_lock:
            for delta in message.outputs:
                if delta.finish_reason is not None:
                    self._count_finished(delta.request_id)
        return message

    def _count_finished(self, request_id: int) -> None:
        left = self._open_children.get(request_id, 0) - 1
        if left > 0:
            self._open_children[request_id] = left
        else:
            self._open_children.pop(request_id, None)

    def _died(self, reason: str | None = None) -> EngineDied:
        exit_code = self._child.wait(_EXIT_WAIT_SECONDS) if self._child else None
        return EngineDied(exit_code, self.running_request_ids, reason)


def _limit_waits(connection: Connection, timeout_seconds: float) -> None:
    """Make a read or write fail with OSError if it makes no progress for that long."""
    seconds, rest = divmod(timeout_seconds, 1.0)
    limit = struct.pack("@ll", int(seconds), int(rest * 1e6))  # a C struct timeval
    with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _send_or_hang_up(connection: Connection, payload: bytes) -> None:
    try:
        connection.send_bytes(payload)
    except OSError:
        _hang_up(connection)  # half of the message may be in the pipe, which would make the rest unreadable
        raise


def _hang_up(connection: Connection) -> None:
    """Shut the pipe down in both directions: the process reads what is in it and then its end, and no one can write.

    Unlike a last message this never waits, and unlike closing it leaves other threads their file descriptor.
    """
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
            pipe.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is already closed, or the process is gone
