"""Tests that a server's certificate is verified: without a valid one nothing is sent."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from jobs.errors import ServiceError
from tests.workers.remote.fake_server import FakeServer
from workers.remote.checks import ask, chat_check
from workers.remote.dialects import VLLM
from workers.remote.exchange import Address
from workers.remote.identity import Identity, identify
from workers.remote.verdicts import Away


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a key and its own certificate, which nobody trusts."""
    file = tmp_path / "own.pem"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1", "-nodes")
    making = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *subject)
    subprocess.run([*making, "-keyout", str(file), "-out", str(tmp_path / "c")], check=True, capture_output=True)
    file.write_bytes(file.read_bytes() + (tmp_path / "c").read_bytes())
    return file


def test_a_server_whose_certificate_nobody_trusts_is_away_and_sees_no_line(certificate: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    server = FakeServer(tls=tls)
    server.start()
    try:
        address = Address(url=server.url, key="sk-not-sent")
        verdict = ask(address, chat_check(Identity(dialect=VLLM, version=None, model="served")))
        assert isinstance(verdict, Away)
        assert "certificate is not valid" in verdict.reason
        with pytest.raises(ServiceError):
            identify(address, named=None, served=None)
        assert server.headers == {}
    finally:
        server.close()
