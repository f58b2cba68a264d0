"""The engine process: read messages, step the engine, send progress.

Run as `python -m engine.process.child`. Token ids in, token ids out; parent.py has the pipe's other end.
"""

from __future__ import annotations

import ctypes
import gc
import os
import queue
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.errors import EngineError
from engine.models.paths import resolve_model_path
from engine.process.landing import Landing
from engine.process.messages import (
    Abort,
    AbortChildren,
    Add,
    Configure,
    Fatal,
    FromEngine,
    Ready,
    ToEngine,
    decode_to_engine,
    encode,
)
from engine.process.outbox import Outbox

if TYPE_CHECKING:
    from engine.loop.core import Engine

HEARTBEAT_SECONDS = 0.9
"""Longest silence of an idle engine; the worker expects a message every second."""

HOLD_SECONDS = 0.2
"""How long tokens may be held before their child ends: each delta costs the reader a look-up."""

RUNNING_SECONDS = 0.5
"""Minimum time between two lists of running requests; one in every step would slow small steps."""

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Serve the pipe on the given file descriptor until the end message; return the exit code."""
    die_with_parent(int(arguments[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(int(arguments[1]))
    try:
        first = decode_to_engine(connection.recv_bytes())
        assert isinstance(first, Configure), f"first message was {type(first).__name__}"
        engine = _load(first.config, connection)
        return 1 if engine is None else _serve(engine, connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return 0  # the worker has closed its end; no one is left to report to


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends for any reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent ended before the call above
        os._exit(1)


def _load(config: EngineConfig, connection: Connection) -> Engine | None:
    try:
        resolve_model_path(config.model)  # a wrong path is reported at once, not after seconds of importing torch
        gc.disable()  # until all is loaded: collections would walk modules and weights, a sixth of the time
        from engine.build import build_engine  # noqa: PLC0415 - torch loads here, where a failure can be reported

        engine = build_engine(config)
    except Exception as error:  # noqa: BLE001 - the edge of the process: every reason goes to the worker
        _send(connection, Fatal(_sentence(error)))
        return None
    gc.enable()
    gc.collect()
    gc.freeze()  # weights and warm-up objects live forever; collections must not walk them
    _send(connection, Ready(engine.info))
    return engine


def _serve(engine: Engine, connection: Connection) -> int:
    inbox: queue.SimpleQueue[ToEngine | Exception] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), name="reader", daemon=True).start()
    outbox = Outbox(lambda progress: _send(connection, progress))
    landing = Landing(engine.add)
    last_put = last_listed = last_released = time.monotonic()
    try:
        while outbox.is_open and _apply_messages(engine, inbox, landing, wait_until=last_put + HEARTBEAT_SECONDS):
            landing.add_some()
            outputs = engine.step() if engine.has_work else []
            now = time.monotonic()
            if now - last_released >= HOLD_SECONDS:
                outputs += engine.release()
                last_released = now
            if outputs or now - last_put >= HEARTBEAT_SECONDS:
                is_listed = now - last_listed >= RUNNING_SECONDS
                running_ids = engine.running_request_ids() if is_listed else None
                outbox.put(outputs, engine.stats(), engine.new_decisions(), running_ids=running_ids)
                last_put, last_listed = now, now if is_listed else last_listed
    except Exception as error:  # noqa: BLE001 - a fault in a step ends the process; the worker starts a new one
        outbox.close()
        _send(connection, Fatal(_sentence(error)))
        return 1
    outbox.close()
    return 0


def _apply_messages(
    engine: Engine, inbox: queue.SimpleQueue[ToEngine | Exception], landing: Landing, *, wait_until: float
) -> bool:
    """Apply received messages; if idle, wait for one until the next heartbeat. Return False to stop."""
    is_idle = not engine.has_work and not landing
    while True:
        try:
            seconds = max(0.001, wait_until - time.monotonic()) if is_idle else 0.0
            message = inbox.get(block=is_idle, timeout=seconds)
        except queue.Empty:
            return True
        is_idle = False
        if isinstance(message, Add):
            landing.put(message.requests)
        elif isinstance(message, Abort):
            landing.add_now(message.request_ids)
            engine.abort(message.request_ids)
        elif isinstance(message, AbortChildren):
            landing.add_now(request_id for request_id, _ in message.children)
            engine.abort_children(message.children)
        elif isinstance(message, EOFError | OSError):
            return False  # the worker has closed its end; running requests are dropped
        elif isinstance(message, Exception):
            raise message


def _read(connection: Connection, inbox: queue.SimpleQueue[ToEngine | Exception]) -> None:
    """Keep the pipe empty, so that the worker's sends never wait for a step."""
    try:
        while True:
            inbox.put(decode_to_engine(connection.recv_bytes()))
    except Exception as error:  # noqa: BLE001 - the edge of the thread: the loop must know why no more messages come
        inbox.put(error)


def _send(connection: Connection, message: FromEngine) -> None:
    connection.send_bytes(encode(message))


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, EngineError) else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    exit_code = main(sys.argv)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: the reader still blocks in its pipe, and Triton's library would report all of itself as leaked.
    os._exit(exit_code)
