"""A real SMTP server in this process that keeps what it accepts."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword

from tests.all_settings import Settings

PASSWORD = "secret of the test"


@dataclass
class Inbox:
    """What the server accepted, and how it answers next."""

    port: int = 0
    mails: list[tuple[list[str], Message]] = field(default_factory=list)
    refuses: dict[str, str] = field(default_factory=dict)
    """Answers to recipients."""
    answers: list[str] = field(default_factory=list)
    """To the next contents, before they are accepted."""
    over_tls: list[bool] = field(default_factory=list)
    """Whether each mail came over TLS."""
    holds_seconds: float = 0.0
    """How long it lets the sender of a content wait for the answer."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
        if address in self.refuses:
            return self.refuses[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        await asyncio.sleep(self.holds_seconds)
        if self.answers:
            return self.answers.pop(0)
        self.mails.append((list(envelope.rcpt_tos), message_from_bytes(envelope.content)))
        self.over_tls.append(session.ssl is not None)
        return "250 accepted"

    @property
    def subjects(self) -> list[str]:
        return [str(mail["Subject"]) for _, mail in self.mails]

    @property
    def texts(self) -> list[str]:
        return [bytes(mail.get_payload(decode=True)).decode() for _, mail in self.mails]


@contextmanager
def mail_server(*, tls: ssl.SSLContext | None = None, needs_login: bool = False) -> Iterator[Inbox]:
    """Run a server on a free port; with `tls` it offers STARTTLS and takes mails only after it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    inbox = Inbox(port=port)
    options: dict[str, Any] = {"auth_required": needs_login, "auth_require_tls": tls is not None}
    if needs_login:
        options["authenticator"] = _is_known
    controller = Controller(
        inbox, hostname="127.0.0.1", port=port, tls_context=tls, require_starttls=tls is not None, **options
    )
    controller.start()
    try:
        yield inbox
    finally:
        controller.stop()


def certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the context of a server at 127.0.0.1, and that of a client which trusts it."""
    key, crt = folder / "key.pem", folder / "crt.pem"
    making = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    names = ("-subj", "/CN=mail", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2")
    subprocess.run([*making, *names, "-keyout", str(key), "-out", str(crt)], check=True, capture_output=True)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(crt, key)
    return served, ssl.create_default_context(cafile=str(crt))


def _is_known(server: Any, session: Any, envelope: Any, mechanism: str, auth_data: LoginPassword) -> AuthResult:
    is_known = (auth_data.login, auth_data.password) == (b"reports", PASSWORD.encode())
    return AuthResult(success=is_known, handled=is_known)


def settings_of(inbox: Inbox, **values: Any) -> Settings:
    """Return the settings of a service that mails to example.com by this server."""
    given = {"mail_server": inbox.address, "mail_from": "mill@example.com", "mail_domains": "example.com"}
    return Settings(**given | values)
