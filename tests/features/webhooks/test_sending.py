"""Tests of requests to a real local server, under names that the tests resolve."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from features.webhooks.addresses import Address
from features.webhooks.sending import ANSWER_BYTES, Answer, Sender
from tests.all_settings import Settings
from tests.webhook_receiver import LOCAL, Receiver, receiving

LOCALS = Settings(webhook_networks=LOCAL).allowed_networks


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


class Names:
    """Resolves every name to the next of these lists, and counts the calls."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    async def __call__(self, host: str, _port: int) -> Sequence[Address]:
        self.asked.append(host)
        return [ip_address(address) for address in self._answers[len(self.asked) - 1]]


def post(url: str, *, networks: str = LOCAL, **options: Any) -> Answer:
    sender = Sender(Settings(webhook_networks=networks).allowed_networks, **options)
    try:
        return asyncio.run(sender.post(url, b'{"a": 1}', {"webhook-id": "evt_1"}))
    finally:
        sender.close()


def test_a_request_has_body_and_headers_and_its_answers_beginning_is_kept(receiver: Receiver) -> None:
    receiver.answers["/hook?x=1"] = (201, {"retry-after": "30"}, b"a\x00\xff" + 600 * b"b")
    answer = post(f"{receiver.url}/hook?x=1")
    (request,) = receiver.received
    assert (request.body, request.headers["webhook-id"], request.headers["content-type"]) == (
        b'{"a": 1}', "evt_1", "application/json",
    )  # fmt: skip
    assert (answer.status_code, answer.is_success, answer.error) == (201, True, None)
    assert answer.text == "a��" + (ANSWER_BYTES - 3) * "b"
    assert answer.retry_after == timedelta(seconds=30)


@pytest.mark.parametrize("status", [199 + 101, 302, 307, 404, 410, 500])
def test_only_2xx_is_a_success_and_redirects_are_not_followed(receiver: Receiver, status: int) -> None:
    receiver.answers["/hook"] = (status, {"location": f"{receiver.url}/other"}, b"")
    answer = post(f"{receiver.url}/hook")
    assert (answer.status_code, answer.is_success) == (status, False)
    assert [request.path for request in receiver.received] == ["/hook"]


def test_an_answer_without_an_end_is_read_no_further_than_needed(receiver: Receiver) -> None:
    def pour(handler: Any) -> None:
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(4096 * b"x")

    receiver.answers["/hook"] = pour
    answer = post(f"{receiver.url}/hook")
    assert (answer.status_code, answer.text) == (200, ANSWER_BYTES * "x")
    receiver.wait_for(lambda: receiver.at_once["/hook"] == 0)


def test_an_answer_that_comes_byte_by_byte_ends_with_the_time_for_all_of_it(receiver: Receiver) -> None:
    def drip(handler: Any) -> None:
        while True:
            handler.wfile.write(b"H")
            time.sleep(0.01)

    receiver.answers["/hook"] = drip
    answer = post(f"{receiver.url}/hook", seconds=0.3)
    assert (answer.status_code, answer.error) == (None, "no answer within 0.3 s")


@pytest.mark.parametrize(
    ("url", "what"),
    [("http://127.0.0.1:1/", "ConnectError"), ("http://no-such-host.invalid/", "no allowed address")],
)
def test_an_endpoint_that_is_not_there_is_told_with_its_reason(url: str, what: str) -> None:
    answer = post(url)
    assert answer.status_code is None
    assert what in str(answer.error)
    assert "\n" not in str(answer.error)


def test_a_name_for_a_private_address_is_not_connected_to(receiver: Receiver) -> None:
    port = receiver.url.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "[::ffff:127.0.0.1]"):
        answer = post(f"http://{host}:{port}/", networks="")
        assert "private network" in str(answer.error), host
        assert "TOKENMILL_WEBHOOK_NETWORKS" in str(answer.error)
    assert receiver.received == []


def test_a_name_inside_and_one_that_is_not_there_have_one_answer(receiver: Receiver) -> None:
    inside = post(f"http://localhost:{receiver.url.rpartition(':')[2]}/", networks="")
    absent = post("http://no-such-host.invalid/", networks="")
    assert inside.error == absent.error
    assert receiver.received == []


def test_one_private_address_among_public_ones_is_enough_to_refuse(receiver: Receiver) -> None:
    port = receiver.url.rpartition(":")[2]
    for found in (["127.0.0.1", "169.254.169.254"], ["169.254.169.254", "127.0.0.1"], ["127.0.0.1", "::1"]):
        assert "private network" in str(post(f"http://hooks.test:{port}/", resolve=Names(found)).error)
    assert receiver.received == []


def test_a_name_is_looked_up_once_and_what_was_checked_is_connected_to(receiver: Receiver) -> None:
    """The second lookup would give another address: the connection must not be made by name."""
    port = receiver.url.rpartition(":")[2]
    names = Names(["127.0.0.1"], ["127.0.0.99"])
    answer = post(f"http://hooks.test:{port}/hook", resolve=names)
    assert (answer.status_code, names.asked) == (200, ["hooks.test"])
    assert receiver.received[0].headers["host"] == f"hooks.test:{port}"


def test_the_next_address_is_tried_where_nobody_listens_at_the_first(receiver: Receiver) -> None:
    port = receiver.url.rpartition(":")[2]
    names = Names(["127.0.0.99", "127.0.0.1"])
    assert post(f"http://hooks.test:{port}/", networks="127.0.0.0/8", resolve=names).status_code == 200


def test_the_environments_proxy_is_not_asked(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert post(f"{receiver.url}/hook").status_code == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and its own certificate for hooks.test."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hooks.test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("hooks.test")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "hooks.pem"
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(pem + made.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.mark.parametrize(("host", "is_accepted"), [("hooks.test", True), ("other.test", False)])
def test_a_certificate_is_held_against_the_name_and_not_the_address(
    certificate: Path, host: str, *, is_accepted: bool
) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate)
    trusted = ssl.create_default_context(cafile=str(certificate))
    with receiving(tls=served) as receiver:
        port = receiver.url.rpartition(":")[2]
        answer = post(f"https://{host}:{port}/hook", resolve=Names(["127.0.0.1"]), tls=trusted)
    assert (answer.status_code == 200) is is_accepted
    assert is_accepted or "mismatch" in str(answer.error).lower()
