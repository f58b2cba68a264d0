"""A real local HTTP server that receives webhooks and answers as a test configures it."""

from __future__ import annotations

import ssl
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LOCAL = "127.0.0.1/32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    path: str
    headers: dict[str, str]
    """By their lower-case names."""
    body: bytes


@dataclass(slots=True)
class Receiver:
    """Answers 200, unless `answers` has something else for a path: (status, headers, body), or a function."""

    url: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    most_at_once: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    at_once: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    changed: threading.Condition = field(default_factory=threading.Condition)

    def wait_for(self, is_there: Callable[[], bool]) -> None:
        """Wait until a condition holds that changes with requests."""
        with self.changed:
            assert self.changed.wait_for(is_there, 30), self.received

    def at(self, path: str) -> list[Received]:
        return [request for request in self.received if request.path == path]


@contextmanager
def receiving(*, tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with receiver.changed:
                receiver.received.append(Received(path=self.path, headers=headers, body=body))
                receiver.at_once[self.path] += 1
                receiver.most_at_once[self.path] = max(receiver.most_at_once[self.path], receiver.at_once[self.path])
                receiver.changed.notify_all()
            answer = receiver.answers.get(self.path, (200, {}, b"thanks"))
            try:
                if callable(answer):
                    answer(self)
                else:
                    self.send(*answer)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the sender has gone
            finally:
                with receiver.changed:
                    receiver.at_once[self.path] -= 1
                    receiver.changed.notify_all()

        def send(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """A test of TLS breaks connections."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
