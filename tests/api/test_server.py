"""Tests of the server on raw sockets, with peers that stop sending, stop reading, or are too many."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.server import CalmServer, Connections, ServerConfig, connections_of
from cli.embedded.sockets import free_port
from jobs.settings import Settings
from tests.api.waiting import running, wait_until_alive

ROOT = Path(__file__).resolve().parents[2]
UNREACHABLE = "postgresql://nobody@127.0.0.1:1/nothing"
GUARD_SECONDS = 5  # a bound for what should end much earlier

GET = b"GET /healthz HTTP/1.1\r\nhost: test\r\n"


@pytest.fixture(scope="module")
def impatient(serve: Callable[..., str]) -> str:
    """The URL of a server with minimal timeouts; it has no database."""
    return serve(
        database_url=UNREACHABLE, api_header_seconds=0.3, api_idle_seconds=0.3, api_stall_seconds=0.5,
        api_max_connections=8,
    )  # fmt: skip


@pytest.fixture
def connect(impatient: str) -> Iterator[Callable[[], socket.socket]]:
    url = httpx.URL(impatient)
    with ExitStack() as stack:

        def open_one() -> socket.socket:
            connection = socket.create_connection((url.host, url.port), timeout=GUARD_SECONDS)
            return stack.enter_context(closing(connection))

        yield open_one


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server ends a connection, and drop what it still sends."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def is_closed_while_fed(connection: socket.socket) -> bool:
    """Send a byte every 50 ms; return whether the server closes the connection within the guard time."""
    connection.settimeout(0.05)
    for _ in range(GUARD_SECONDS * 20):
        try:
            connection.sendall(b"x")
            if not connection.recv(65536):
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize("head", [b"", b"GET /healthz HT", GET])
def test_a_head_that_never_ends_is_not_waited_for(connect: Callable[[], socket.socket], head: bytes) -> None:
    connection = connect()
    connection.sendall(head)
    assert is_closed(connection)


def test_a_head_that_comes_byte_by_byte_gets_no_more_time(connect: Callable[[], socket.socket]) -> None:
    connection = connect()
    connection.sendall(GET)
    assert is_closed_while_fed(connection)


def test_a_second_head_has_a_time_of_its_own(connect: Callable[[], socket.socket]) -> None:
    connection = connect()
    connection.sendall(GET + b"\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    connection.sendall(GET)
    assert is_closed(connection)


def test_an_idle_connection_is_closed(connect: Callable[[], socket.socket]) -> None:
    connection = connect()
    connection.sendall(GET + b"\r\n")
    assert is_closed(connection)


@pytest.mark.parametrize(
    "head",
    [
        b"POST /v1/batches HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
        b"POST /v1/files HTTP/1.1\r\nhost: test\r\nauthorization: Bearer tm-x\r\ncontent-length: 1000\r\n"
        b"content-type: multipart/form-data; boundary=b\r\n\r\n--b",
    ],
)
def test_a_body_that_stops_is_not_waited_for(connect: Callable[[], socket.socket], head: bytes) -> None:
    connection = connect()
    connection.sendall(head)
    assert is_closed(connection)


def test_an_upload_that_pauses_is_a_408_and_leaves_nothing(deploy: Callable[..., Any]) -> None:
    deployment = deploy(api_stall_seconds=0.5)
    url = httpx.URL(deployment.url)
    with socket.create_connection((url.host, url.port), timeout=GUARD_SECONDS) as connection:
        connection.sendall(
            b"POST /v1/files HTTP/1.1\r\nhost: test\r\nauthorization: Bearer " + deployment.new_key().encode() +
            b"\r\ncontent-length: 1000\r\ncontent-type: multipart/form-data; boundary=b\r\n\r\n"
            b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nbegun'
        )  # fmt: skip
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"request_timeout"' in answer
    assert deployment.object_names() == set()


def test_the_rest_of_a_body_that_nobody_needs_is_not_read_for_ever(connect: Callable[[], socket.socket]) -> None:
    connection = connect()
    connection.sendall(b"POST /nowhere HTTP/1.1\r\nhost: test\r\ncontent-length: 1000000\r\n\r\n")
    assert is_closed_while_fed(connection)


def test_a_reader_that_does_not_read_is_cut_off(connect: Callable[[], socket.socket]) -> None:
    connection = connect()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ask = b"GET /openapi.json HTTP/1.1\r\nhost: test\r\n\r\n"
    # not a TimeoutError, which would mean that the server neither reads nor closes
    with pytest.raises(ConnectionError):
        connection.sendall(200_000 * ask)  # each answer has tens of KB, and none is read


def test_more_connections_than_there_may_be_displace_those_that_ask_for_nothing(
    connect: Callable[[], socket.socket], impatient: str
) -> None:
    silent = [connect() for _ in range(40)]
    for _ in range(5):
        assert httpx.get(f"{impatient}/healthz").status_code == 200
    assert all(map(is_closed, silent))


@pytest.fixture(scope="module")
def patient(serve: Callable[..., str]) -> str:
    """The URL of a server with room for few connections; none of its timers ends during a test."""
    return serve(database_url=UNREACHABLE, api_max_connections=8)


def test_bodies_that_stop_are_displaced_like_those_that_ask_for_nothing(patient: str) -> None:
    url = httpx.URL(patient)
    with ExitStack() as stack:
        for _ in range(40):
            half = socket.create_connection((url.host, url.port), timeout=GUARD_SECONDS)
            stack.enter_context(closing(half))
            half.sendall(
                b"POST /v1/batches HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n"
                b"content-length: 5\r\n\r\n{"
            )
        for _ in range(5):
            assert httpx.get(f"{patient}/healthz").status_code == 200


LARGE_BYTES = 32 * 1024 * 1024


async def answer_much(scope: Scope, receive: Receive, send: Send) -> None:
    """Send `/large` in one piece that exceeds any socket's buffer."""
    if scope["type"] == "http":
        body = bytes(LARGE_BYTES if scope["path"] == "/large" else 1)
        await Response(body)(scope, receive, send)


def test_an_answer_that_is_still_being_sent_is_not_displaced() -> None:
    shared = Connections(max_connections=4, backlog=64, header_seconds=60, idle_seconds=60, stall_seconds=60)
    config = ServerConfig(answer_much, shared, port=0)
    config.lifespan = "off"
    with running(config) as url, ExitStack() as stack:
        address = (httpx.URL(url).host, httpx.URL(url).port or 0)
        reader = stack.enter_context(closing(socket.create_connection(address, timeout=GUARD_SECONDS)))
        reader.sendall(b"GET /large HTTP/1.1\r\nhost: test\r\n\r\n")
        num_bytes = len(reader.recv(1))
        for _ in range(8):
            client = stack.enter_context(httpx.Client())
            assert client.get(f"{url}/small").status_code == 200
        while num_bytes < LARGE_BYTES:
            piece = reader.recv(1024 * 1024)
            assert piece, f"cut off after {num_bytes} bytes"
            num_bytes += len(piece)


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory, new_database: Callable[[], str]) -> Iterator[tuple[str, Path, int]]:
    """The URL, the log and the pid of a `tokenmill api` that may open 256 descriptors."""
    folder, port = tmp_path_factory.mktemp("role"), free_port()
    environment = os.environ | {
        "TOKENMILL_DATABASE_URL": new_database(),
        "TOKENMILL_STORAGE_URL": (folder / "objects").as_uri(),
        "PYTHONPATH": str(ROOT),
    }
    log = folder / "api.log"
    command = f"ulimit -Sn 200; ulimit -Hn 256; exec {sys.executable} -m cli.main api --port {port}"
    with (
        log.open("wb") as output,
        subprocess.Popen(["bash", "-c", command], stdout=output, stderr=output, env=environment, cwd=ROOT) as process,
    ):
        try:
            wait_until_alive(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}", log, process.pid
        finally:
            process.terminate()


def test_a_server_without_descriptors_goes_on_answering_and_its_log_stays_small(role: tuple[str, Path, int]) -> None:
    url, log, _ = role
    with ExitStack() as stack:
        for _ in range(600):
            silent = socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0), timeout=GUARD_SECONDS)
            stack.enter_context(closing(silent))
            silent.sendall(b"GET /v1/models HT")
        for path in ("/healthz", "/readyz"):
            assert httpx.get(url + path, timeout=GUARD_SECONDS).status_code == 200
    assert log.stat().st_size < 50_000
    assert "fewer connections than set" in log.read_text()


def test_the_role_takes_all_descriptors_that_it_may(role: tuple[str, Path, int]) -> None:
    assert resource.prlimit(role[2], resource.RLIMIT_NOFILE) == (256, 256)


UNKNOWN = {f"k{number}": number for number in range(4000)}


@pytest.mark.parametrize(
    ("body", "param", "shown"),
    [
        (UNKNOWN, "k0", "Unknown parameters: 'k0', 'k1', 'k2', 'k3', 'k4' and 3,995 more."),
        ({"output_expires_after": UNKNOWN}, "output_expires_after.k0", "'output_expires_after.k4' and 3,995 more."),
        ({"k" * 60_000: 1}, "k" * 100 + "…", "Unknown parameter: 'kkkk"),
        ({"metadata": UNKNOWN}, "metadata", "4000 pairs"),
    ],
)
def test_a_body_of_unknown_keys_gets_a_short_answer(client: Any, body: dict[str, Any], param: str, shown: str) -> None:
    wanted = {"input_file_id": "file_1", "endpoint": "/v1/completions", "completion_window": "24h", **body}
    headers = {"Authorization": f"Bearer {client.api_key}", "content-type": "application/json"}
    answer = httpx.post(f"{client.base_url}batches", headers=headers, content=json.dumps(wanted))
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert shown in error["message"]
    assert len(answer.content) < 1000


def test_metrics_and_schema_can_be_for_operators_only(serve: Callable[..., str]) -> None:
    url = serve(database_url=UNREACHABLE, api_operator_key="a long secret")
    for path in ("/metrics", "/openapi.json"):
        refused = [httpx.get(url + path), httpx.get(url + path, headers={"Authorization": "Bearer another"})]
        assert [(answer.status_code, answer.json()["error"]["code"]) for answer in refused] == [
            (401, "missing_api_key"),
            (401, "invalid_api_key"),
        ]
        assert httpx.get(url + path, headers={"Authorization": "Bearer a long secret"}).status_code == 200
    assert httpx.get(f"{url}/healthz").status_code == 200


def test_a_server_at_rest_wakes_up_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def app(_: Scope, __: Receive, ___: Send) -> None:
        """Gets no requests."""

    config = ServerConfig(app, connections_of(Settings()), port=1)
    config.load()
    server = CalmServer(config)

    here, really_sleep = threading.get_ident(), asyncio.sleep

    async def sleep(seconds: float) -> None:
        if threading.get_ident() != here:  # the server of another test, in its own thread
            await really_sleep(seconds)
            return
        slept.append(seconds)
        assert server.server_state.default_headers[0][0] == b"date"
        server.should_exit = len(slept) == 3

    monkeypatch.setattr("asyncio.sleep", sleep)
    asyncio.run(server.main_loop())
    assert slept == [0.5] * 3


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /v1/files HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"POST /v1/files HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n", 400),
        (b"GET /healthz HTTP/2.0\r\nhost: test\r\n\r\n", 505),
        (b"GET /healthz HTTP/0.1\r\nhost: test\r\n\r\n", 505),
    ],
)
def test_a_request_that_two_readers_delimit_differently_is_refused_and_its_connection_closed(
    connect: Callable[[], socket.socket], head: bytes, status: int
) -> None:
    connection = connect()
    smuggled = b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n"
    connection.sendall(head + (b"0\r\n\r\n" + smuggled if status == 400 else b""))
    answer = b""
    while part := connection.recv(65536):
        answer += part
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1 ") == 1, "nothing behind it is answered"
    assert b"connection: close" in answer.lower()


def test_every_answer_says_that_it_is_what_its_type_says(impatient: str) -> None:
    for path in ("/healthz", "/v1/models", "/none"):
        assert httpx.get(f"{impatient}{path}").headers["x-content-type-options"] == "nosniff"
