"""Receives the batches' webhooks and records the events of each batch by their ids."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True, eq=False)
class Received:
    """Every received event, with the number of its deliveries."""

    url: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _events: dict[str, dict[tuple[str, str], int]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, batch_id: str, event_type: str, event_id: str) -> None:
        with self._lock:
            events = self._events[batch_id]
            events[event_type, event_id] = events.get((event_type, event_id), 0) + 1

    def of(self, batch_id: str) -> list[str]:
        """Return the types of a batch's events, once per event id."""
        with self._lock:
            return sorted(event_type for event_type, _ in self._events[batch_id])

    @property
    def num_repeats(self) -> int:
        """Return the number of requests that repeated an event; repeats are allowed."""
        with self._lock:
            return sum(num - 1 for events in self._events.values() for num in events.values())


@contextmanager
def receiver() -> Iterator[Received]:
    """Listen on a free port."""
    received = Received()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"received": received}))
    received.url = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    received: Received

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.received.add(event["data"]["id"], event["type"], event["id"])
        self.send_response(HTTPStatus.NO_CONTENT)
        self.end_headers()
