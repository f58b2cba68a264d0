"""Tests of the profiles of docker-compose.yml: Prometheus that scrapes, a proxy with TLS, further models, a bucket."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from moto.server import ThreadedMotoServer

from cli.embedded.sockets import free_port
from tests.deploy.containers.builders import lines
from tests.deploy.containers.composed import ROLES, Composed, until
from tests.deploy.prometheus_rules import rules
from tests.e2e.builders import Customer

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]

PROFILES = ("observability", "tls", "model-2")


@pytest.fixture(scope="module")
def bridge(daemon: None) -> str:
    """Return the host's address on Docker's default bridge, where containers reach servers of these tests."""
    probe = Composed(folder=Path("/"), port=0)
    return probe.run(
        "docker", "network", "inspect", "bridge", "-f", "{{(index .IPAM.Config 0).Gateway}}"
    ).stdout.strip()


class OtherEngine(BaseHTTPRequestHandler):
    """The least of an OpenAI-compatible server: one model, one answer."""

    def do_GET(self) -> None:
        if self.path != "/v1/models":  # what only engines of one kind have
            self.send_error(404)
            return
        self._send({"object": "list", "data": [{"id": "large", "object": "model", "max_model_len": 4096}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}
        usage = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}
        self._send(
            {
                "id": "c",
                "object": "chat.completion",
                "created": 0,
                "model": "large",
                "choices": [choice],
                "usage": usage,
            }
        )

    def _send(self, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def other_engine(bridge: str) -> Iterator[str]:
    server = ThreadingHTTPServer((bridge, 0), OtherEngine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://{bridge}:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def bucket(bridge: str) -> Iterator[dict[str, str]]:
    """Return the settings of a bucket; its server checks no signature."""
    server = ThreadedMotoServer(ip_address=bridge, port=free_port())
    server.start()
    url = f"http://{bridge}:{server._port}"
    httpx.put(f"{url}/files")
    yield {
        "TOKENMILL_STORAGE_URL": "s3://files/objects",
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    server.stop()


@pytest.fixture(scope="module")
def stack(bucket: dict[str, str], other_engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """A stack with every profile that needs no GPU. Grafana is left out: it has no stand-in."""
    ports = {name: str(free_port()) for name in ("PROMETHEUS_PORT", "TOKENMILL_HTTP_PORT", "TOKENMILL_TLS_PORT")}
    settings = bucket | ports | {
        "TOKENMILL_METRICS_HOST": "0.0.0.0",
        "TOKENMILL_MODEL_2": f"--model large --engine openai --url {other_engine}",
        "TOKENMILL_WORKER_MEMORY": "3g",
    }  # fmt: skip
    stack = Composed(folder=tmp_path_factory.mktemp("profiles"), port=free_port(), settings=settings)
    stack.lay_out()
    (stack.folder / "docker-compose.override.yml").write_text(
        'services: {grafana: {image: "caddy:2", command: sleep 9999}}'
    )
    try:
        stack.call(*(word for name in PROFILES for word in ("--profile", name)), "up", "--detach", "--no-build")
        stack.until_ready()
        stack.add_tenant("acme")
        yield stack
    finally:
        stack.run(stack.compose, "down", "--volumes", "--remove-orphans", "--timeout", "5")


def test_files_go_to_the_bucket(customer: Customer, bucket: dict[str, str]) -> None:
    assert len(customer.answers(customer.submit(lines(20)), num_lines=20)) == 20
    listed = httpx.get(f"{bucket['AWS_ENDPOINT_URL']}/files?list-type=2").text
    assert "<Key>objects/.database</Key>" in listed
    assert customer.stack.audit() == "clean"


def test_a_further_model_is_one_line_and_may_be_a_server_of_others(customer: Customer) -> None:
    until(lambda: "large" in [model.id for model in customer.client.models.list()], customer.stack)
    answers = customer.answers(customer.submit(lines(5, model="large")), num_lines=5)
    assert {each["response"]["body"]["choices"][0]["message"]["content"] for each in answers} == {"yes"}


def test_a_worker_has_the_memory_that_it_was_given(stack: Composed) -> None:
    (worker,) = stack.ids("worker-cpu")
    assert stack.inspect(worker, "{{.HostConfig.Memory}} {{.HostConfig.ShmSize}}") == f"{3 << 30} {1 << 30}"


def test_prometheus_scrapes_every_role_and_has_the_rules(stack: Composed) -> None:
    url = f"http://127.0.0.1:{stack.settings['PROMETHEUS_PORT']}/api/v1"

    def scraped() -> bool:
        up = httpx.get(f"{url}/query", params={"query": "up"}).json()["data"]["result"]
        return len(up) == len(ROLES) + 1 and {each["value"][1] for each in up} == {"1"}

    until(scraped, stack)
    (group,) = httpx.get(f"{url}/rules").json()["data"]["groups"]
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == {
        rule["alert"]: "ok" for rule in rules()["groups"][0]["rules"]
    }
    spent = httpx.get(f"{url}/query", params={"query": "max(tokenmill_database_up)"}).json()["data"]["result"]
    assert [each["value"][1] for each in spent] == ["1"]


def exchange(stack: Composed, request: bytes) -> bytes:
    """Send bytes through the proxy's TLS and return all that comes back."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the proxy's own authority
    port = int(stack.settings["TOKENMILL_TLS_PORT"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(request)
        received = b""
        try:
            while piece := connection.recv(65536):
                received += piece
        except TimeoutError:
            pass
    return received


def test_the_proxy_serves_the_api_and_hides_what_is_inside(stack: Composed) -> None:
    url = f"https://localhost:{stack.settings['TOKENMILL_TLS_PORT']}"
    with httpx.Client(verify=False) as client:
        until(lambda: client.get(f"{url}/readyz").status_code == 200, stack)
        assert client.get(f"{url}/metrics").status_code == 404
        assert client.get(f"{url}/openapi.json").status_code == 404
        assert client.get(f"{url}/v1/models", headers=stack.client().auth_headers).status_code == 200
        same_origin = {"sec-fetch-site": "same-origin"}
        signed_in = client.post(f"{url}/sign-in", data={"key": stack.api_key}, headers=same_origin)
        assert "Secure" in signed_in.headers["set-cookie"], "the API believes the proxy's X-Forwarded-Proto"


HEAD = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
INNER = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
SMUGGLED = {
    "length and chunks": HEAD + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "two lengths": HEAD + b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(INNER) + INNER,
    "obfuscated chunks": HEAD + b"Transfer-Encoding: xchunked\r\nContent-Length: 0\r\n\r\n" + INNER,
    "space before the colon": HEAD + b"Content-Length : %d\r\n\r\n" % len(INNER) + INNER,
    "bare line feeds": HEAD.replace(b"\r\n", b"\n") + b"Transfer-Encoding: chunked\n\n0\n\n" + INNER,
    "length with a sign": HEAD + b"Content-Length: +0\r\n\r\n" + INNER,
    "chunk with an overflowing size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n\r\n" + INNER,
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_no_second_request_is_smuggled_through_the_proxy(stack: Composed, name: str) -> None:
    """A request that reached the API hidden in another one would be answered to the next client of that connection."""
    received = exchange(stack, SMUGGLED[name])
    assert received.count(b"HTTP/1.1 ") <= 1, received
    assert b'"storage"' not in received, "the answer to the request inside"
    for _ in range(20):
        answer = httpx.get(f"https://localhost:{stack.settings['TOKENMILL_TLS_PORT']}/v1/models", verify=False)
        assert answer.status_code == 401
