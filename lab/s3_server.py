"""An S3 server that can answer, refuse or hang: moto behind a proxy, both in threads of this process.

For tests and studies; needs `pip install tokenmill[dev]`. Signatures are not checked.
"""

from __future__ import annotations

import functools
import http.client
import itertools
import logging
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

_HOST = "127.0.0.1"
_TIMEOUT_SECONDS = 60.0
_OF_A_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length", "server", "date"}
_OF_A_CONTENT = {"content-length", "content-md5", "x-amz-checksum-sha256"}

_bucket_numbers = itertools.count()


class Mood(StrEnum):
    """How a request fails."""

    REFUSE = "refuse"  # 503 SlowDown, at once
    FORBID = "forbid"  # 403, which no client retries
    NO_BUCKET = "no bucket"  # 404 NoSuchBucket
    NO_ROUTE = "no route"  # 404 with an HTML page, as from an ingress without a backend
    OTHER_SITE = "other site"  # 200 with an HTML page, for any request
    HANG = "hang"  # no answer until `recover`; then the connection breaks
    BREAK_OFF = "break off"  # half of the body, then silence as under HANG


_REFUSALS = {
    Mood.REFUSE: (HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown"),
    Mood.FORBID: (HTTPStatus.FORBIDDEN, "AccessDenied"),
    Mood.NO_BUCKET: (HTTPStatus.NOT_FOUND, "NoSuchBucket"),
}
_PAGES = {Mood.NO_ROUTE: HTTPStatus.NOT_FOUND, Mood.OTHER_SITE: HTTPStatus.OK}
_PAGE = b"<html><body>Welcome</body></html>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trouble:
    """A mood for some of the requests; compared by identity."""

    mood: Mood
    methods: frozenset[str]
    key_prefix: str


@dataclass(slots=True, eq=False)
class S3Server:
    """One bucket. Troubles can be set at any time; `requests` counts (method, key) on arrival, before any trouble."""

    backend_port: int
    bucket: str = field(default_factory=lambda: f"bucket-{next(_bucket_numbers)}")
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    changed: threading.Condition = field(default_factory=threading.Condition)
    port: int = 0
    _troubles: list[Trouble] = field(default_factory=list)
    _num_hanging: int = 0

    @property
    def url(self) -> str:
        """Return the value for TOKENMILL_STORAGE_URL."""
        return f"s3://{self.bucket}/objects"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables with which a process finds this server under `url`."""
        return {
            "AWS_ENDPOINT_URL": f"http://{_HOST}:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys of all objects, or of those with a prefix; 1,000 at most."""
        return re.findall(r"<Key>(.*?)</Key>", self._ask(f"?list-type=2&prefix={quote(prefix)}"))

    def unfinished_uploads(self) -> list[str]:
        """Return the keys of multipart uploads that were started and neither completed nor aborted."""
        return re.findall(r"<Key>(.*?)</Key>", self._ask("?uploads"))

    def _ask(self, query: str) -> str:
        # The real server fails where an object is deleted while it lists.
        status: int = HTTPStatus.INTERNAL_SERVER_ERROR
        while status == HTTPStatus.INTERNAL_SERVER_ERROR:
            status, _, content = self.forward("GET", f"/{self.bucket}{query}", {}, b"")
        return content.decode()

    def make_bucket(self) -> None:
        self.forward("PUT", f"/{self.bucket}", {}, b"")

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Return the real server's answer: status, headers, body."""
        connection = http.client.HTTPConnection(_HOST, self.backend_port, timeout=_TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body=body, headers=headers)
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def trouble(self, mood: Mood, *, methods: str = "GET HEAD PUT POST DELETE", key_prefix: str = "") -> None:
        """Apply `mood` to requests of these methods for keys with this prefix, until `recover`; the latest wins."""
        with self.changed:
            self._troubles.append(Trouble(mood=mood, methods=frozenset(methods.split()), key_prefix=key_prefix))

    def recover(self) -> None:
        """Answer all requests again; hanging connections break."""
        with self.changed:
            self._troubles.clear()
            self.changed.notify_all()

    def wait_for_hanging(self, num_requests: int = 1) -> None:
        """Wait until `num_requests` hang at once."""
        with self.changed:
            assert self.changed.wait_for(lambda: self._num_hanging >= num_requests, timeout=60), "nothing hangs"

    def wait_for_request(self, method: str, key: str = "", *, num_requests: int = 1) -> None:
        """Wait until `num_requests` of `method` for keys with this suffix have arrived since the start."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.num_requests(method, key) >= num_requests, timeout=60)

    def num_requests(self, method: str, key: str = "") -> int:
        return sum(number for (one, name), number in self.requests.items() if one == method and name.endswith(key))

    def hang(self, trouble: Trouble) -> None:
        """Leave a request unanswered until its trouble is over."""
        with self.changed:
            self._num_hanging += 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: trouble not in self._troubles)
            self._num_hanging -= 1

    def meet(self, method: str, key: str) -> Trouble | None:
        """Count the request and return the trouble that applies to it."""
        with self.changed:
            self.requests[method, key] += 1
            self.changed.notify_all()
            for trouble in reversed(self._troubles):
                if method in trouble.methods and key.startswith(trouble.key_prefix):
                    return trouble
            return None


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Serve an empty bucket on a free port."""
    s3 = S3Server(_backend_port())
    s3.make_bucket()
    server = _Server((_HOST, 0), type("Handler", (_Handler,), {"s3": s3}))
    s3.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield s3
    finally:
        server.shutdown()
        s3.recover()
        server.server_close()
        server.close_connections()
        thread.join()


@functools.cache
def _backend_port() -> int:
    """Start the real server once per process: its import takes seconds."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - loaded only where a server is needed

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # otherwise a line for each request
    server = ThreadedMotoServer(ip_address=_HOST, port=0, verbose=False)
    server.start()
    port: int = server.get_host_and_port()[1]
    return port


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_connections(self) -> None:
        """Break open connections of clients: a server that has ended serves none of them."""
        for connection in list(self._open):
            with suppress(OSError):  # the client closed it first
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    s3: S3Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer waits 40 ms for the ACK of its headers

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            return  # the client has gone

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        url = urlsplit(self.path)
        key = unquote(url.path).removeprefix(f"/{self.s3.bucket}").lstrip("/")
        trouble = self.s3.meet(self.command, key)
        if trouble is not None and trouble.mood is Mood.HANG:
            self.s3.hang(trouble)
            self.close_connection = True
        elif trouble is not None and trouble.mood in _REFUSALS:
            self._fail(*_REFUSALS[trouble.mood])
        elif trouble is not None and trouble.mood in _PAGES:
            page = {"content-type": "text/html", "etag": '"1"', "content-length": str(len(_PAGE))}
            self._answer(_PAGES[trouble.mood], page, _PAGE)
        elif self.command == "POST" and url.query == "delete":
            self._delete_many(body)
        else:
            self._relay(body, breaks_off=trouble)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _delete_many(self, body: bytes) -> None:
        """Delete the keys of a `?delete` request; each key meets the mood that its own DELETE would meet."""
        objects = re.findall(rb"<Object>.*?</Object>", body, re.DOTALL)
        keys = [re.findall(rb"<Key>(.*?)</Key>", one)[0].decode() for one in objects]
        failed = [key for key in keys if self.s3.meet("DELETE", key) is not None]
        for key, one in zip(keys, objects, strict=True):
            if key in failed:
                body = body.replace(one, b"")
        errors = "".join(
            f"<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>no</Message></Error>" for key in failed
        )
        if len(failed) == len(keys):
            self._answer(HTTPStatus.OK, {}, f"<DeleteResult>{errors}</DeleteResult>".encode())
        else:
            self._relay(body, errors=errors.encode())

    def _relay(self, body: bytes, *, breaks_off: Trouble | None = None, errors: bytes = b"") -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        headers = {name: value for name, value in headers.items() if name not in _OF_A_CONNECTION | _OF_A_CONTENT}
        status, answered, content = self.s3.forward(self.command, self.path, headers, body)
        content = content.replace(b"</DeleteResult>", errors + b"</DeleteResult>") if errors else content
        self._answer(status, answered, content, breaks_off=breaks_off)

    def _fail(self, status: HTTPStatus, code: str) -> None:
        content = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self._answer(status, {"content-type": "application/xml"}, content)

    def _answer(
        self, status: int, headers: dict[str, str], content: bytes, *, breaks_off: Trouble | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name not in _OF_A_CONNECTION:
                self.send_header(name, value)
        is_head = self.command == "HEAD"
        self.send_header("content-length", headers.get("content-length", "0") if is_head else str(len(content)))
        self.end_headers()
        if is_head:
            return
        if breaks_off is not None:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.s3.hang(breaks_off)
            self.close_connection = True
        else:
            self.wfile.write(content)
