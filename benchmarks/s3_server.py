"""A small S3 in a thread, for tests and benchmarks: real HTTP, objects in memory, and any mood that a store can have.

Speaks what `obstore` says: PUT, GET with Range, HEAD, DELETE, multipart uploads, many deletions at once, lists.
Signatures are not checked.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "bucket"


class Mood(StrEnum):
    """What a request meets."""

    PASS = "pass"
    REFUSE = "refuse"  # 503 SlowDown, at once
    FORBID = "forbid"  # 403, which no client tries again
    HANG = "hang"  # no answer until it recovers; then the connection breaks
    BREAK_OFF = "break off"  # half of the body, then silence as under HANG


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A mood for some of the requests."""

    mood: Mood
    methods: frozenset[str]
    key_prefix: str


@dataclass(slots=True, eq=False)
class S3Server:
    """One bucket. Set troubles at any time; `requests` counts (method, key) as they arrive, before any trouble."""

    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)  # id: (key, parts); unfinished ones
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    delay_seconds: float = 0.0  # before each answer
    changed: threading.Condition = field(default_factory=threading.Condition)
    port: int = 0
    _troubles: list[Trouble] = field(default_factory=list)
    _num_hanging: int = 0
    _num_recoveries: int = 0
    _upload_ids: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def url(self) -> str:
        """Return what goes into TOKENMILL_STORAGE_URL."""
        return f"s3://{BUCKET}/objects"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables with which a process finds this server under `url`."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
        }

    def trouble(self, mood: Mood, *, methods: str = "GET HEAD PUT POST DELETE", key_prefix: str = "") -> None:
        """Let requests of these methods for keys that begin so meet `mood`, until `recover`; the last one counts."""
        with self.changed:
            self._troubles.append(Trouble(mood=mood, methods=frozenset(methods.split()), key_prefix=key_prefix))

    def recover(self) -> None:
        """Answer everything again; what hangs breaks."""
        with self.changed:
            self._troubles.clear()
            self._num_recoveries += 1
            self.changed.notify_all()

    def wait_for_hanging(self, num_requests: int = 1) -> None:
        """Wait until so many requests hang at once."""
        with self.changed:
            assert self.changed.wait_for(lambda: self._num_hanging >= num_requests, timeout=60), "nothing hangs"

    def wait_for_request(self, method: str, key: str = "", *, num_requests: int = 1) -> None:
        """Wait until so many requests of `method` for keys that end so have arrived since the start."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.num_requests(method, key) >= num_requests, timeout=60)

    def num_requests(self, method: str, key: str = "") -> int:
        return sum(number for (one, name), number in self.requests.items() if one == method and name.endswith(key))

    def hang(self) -> None:
        """Keep a request without an answer until the next `recover`."""
        with self.changed:
            self._num_hanging += 1
            self.changed.notify_all()
            before = self._num_recoveries
            self.changed.wait_for(lambda: self._num_recoveries > before)
            self._num_hanging -= 1

    def mood_of(self, method: str, key: str) -> Mood:
        """Note the request and return what it meets."""
        with self.changed:
            self.requests[method, key] += 1
            self.changed.notify_all()
            for trouble in reversed(self._troubles):
                if method in trouble.methods and key.startswith(trouble.key_prefix):
                    return trouble.mood
            return Mood.PASS


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Serve an empty bucket on a free port."""
    s3 = S3Server()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"s3": s3}))
    s3.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield s3
    finally:
        server.shutdown()
        s3.recover()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Handler(BaseHTTPRequestHandler):
    s3: S3Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for the acknowledgement of its headers

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            return  # the client has given up

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        url = urlsplit(self.path)
        key = unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/")
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        mood = self.s3.mood_of(self.command, key)
        time.sleep(self.s3.delay_seconds)
        if mood is Mood.HANG:
            self.s3.hang()
            self.close_connection = True
        elif mood is Mood.REFUSE:
            self._fail(HTTPStatus.SERVICE_UNAVAILABLE, "SlowDown")
        elif mood is Mood.FORBID:
            self._fail(HTTPStatus.FORBIDDEN, "AccessDenied")
        else:
            self._breaks_off = mood is Mood.BREAK_OFF
            getattr(self, f"_{self.command.lower()}")(key, query, body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve

    def _get(self, key: str, query: dict[str, str], _body: bytes) -> None:
        if "list-type" in query:
            self._list(query.get("prefix", ""))
            return
        content = self.s3.objects.get(key)
        if content is None:
            self._fail(HTTPStatus.NOT_FOUND, "NoSuchKey")
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        if wanted is None:
            self._answer(content, headers=_described(content))
            return
        start, end = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
        if start >= len(content):
            self._fail(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "InvalidRange")
            return
        headers = _described(content) | {"content-range": f"bytes {start}-{end}/{len(content)}"}
        self._answer(content[start : end + 1], status=HTTPStatus.PARTIAL_CONTENT, headers=headers)

    def _head(self, key: str, query: dict[str, str], body: bytes) -> None:
        self._get(key, query, body)

    def _list(self, prefix: str) -> None:
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size><ETag>e</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, content in sorted(self.s3.objects.items())
            if key.startswith(prefix)
        )
        self._answer_xml(f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>")

    def _put(self, key: str, query: dict[str, str], body: bytes) -> None:
        if "uploadId" in query:
            self.s3.uploads[query["uploadId"]][1][int(query["partNumber"])] = body
        else:
            self.s3.objects[key] = body
        self._answer(b"", headers={"etag": '"e"'})

    def _post(self, key: str, query: dict[str, str], body: bytes) -> None:
        if "delete" in query:
            self._delete_many(body)
        elif "uploads" in query:
            upload_id = f"upload-{next(self.s3._upload_ids)}"
            self.s3.uploads[upload_id] = (key, {})
            self._answer_xml(
                f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
            )
        else:
            parts = self.s3.uploads.pop(query["uploadId"])[1]
            self.s3.objects[key] = b"".join(parts[number] for number in sorted(parts))
            self._answer_xml("<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")

    def _delete_many(self, body: bytes) -> None:
        """Delete what a `?delete` names; each key meets the mood that its own DELETE would meet."""
        rows = []
        for key in re.findall(r"<Key>(.*?)</Key>", body.decode()):
            if self.s3.mood_of("DELETE", key) is Mood.PASS:
                self.s3.objects.pop(key, None)
                rows.append(f"<Deleted><Key>{key}</Key></Deleted>")
            else:
                rows.append(f"<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>no</Message></Error>")
        self._answer_xml(f"<DeleteResult>{''.join(rows)}</DeleteResult>")

    def _delete(self, key: str, query: dict[str, str], _body: bytes) -> None:
        if "uploadId" in query:
            self.s3.uploads.pop(query["uploadId"], None)
        else:
            self.s3.objects.pop(key, None)
        self._answer(b"", status=HTTPStatus.NO_CONTENT)

    def _fail(self, status: HTTPStatus, code: str) -> None:
        self._breaks_off = False
        self._answer_xml(f"<Error><Code>{code}</Code><Message>{code}</Message></Error>", status=status)

    def _answer_xml(self, document: str, *, status: HTTPStatus = HTTPStatus.OK) -> None:
        content = f'<?xml version="1.0" encoding="UTF-8"?>{document}'.encode()
        self._answer(content, status=status, headers={"content-type": "application/xml"})

    def _answer(
        self, content: bytes, *, status: HTTPStatus = HTTPStatus.OK, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self._breaks_off:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.s3.hang()
            self.close_connection = True
        else:
            self.wfile.write(content)


def _described(content: bytes) -> dict[str, str]:
    return {"etag": f'"{len(content)}"', "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
