"""Settings of reports' mails; without a server there are none."""

from __future__ import annotations

import os
from ipaddress import ip_address

from pydantic import field_validator

from features.reports.addresses import is_address
from jobs.errors import ServiceError
from jobs.settings import Settings

_ENV = "env:"


class ReportSettings(Settings):
    mail_server: str = ""
    """SMTP server of reports' mails, as `host:port`; empty: no mails. Port 465 is TLS from the start, others must offer
    STARTTLS, except on a loopback address."""
    mail_from: str = ""
    """The sender's address, without a name."""
    mail_user: str = ""
    """The name to sign in with at the server; empty: without."""
    mail_password: str = ""
    """Its password as `env:NAME`, an environment variable of the control workers."""
    mail_domains: str = ""
    """Domains that tenants may have reports sent to, such as `example.com,example.org`; no subdomains. Empty: no
    mails."""
    mail_site: str = ""
    """The dashboard's address for links in mails, such as `https://tokenmill.example.com`; empty: no links."""

    @field_validator("mail_server")
    @classmethod
    def _check_server(cls, given: str) -> str:
        host, _, port = given.rpartition(":")
        if given and not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError("give host:port, such as smtp.example.com:587")
        return given

    @field_validator("mail_from")
    @classmethod
    def _check_from(cls, given: str) -> str:
        if given and not is_address(given):
            raise ValueError("give one address without a name, such as reports@example.com")
        return given

    @field_validator("mail_password")
    @classmethod
    def _check_password(cls, given: str) -> str:
        if given and not given.startswith(_ENV):
            raise ValueError("give env:NAME, the environment variable that holds it")
        return given

    @property
    def mail_address(self) -> tuple[str, int]:
        """Return host and port of the server, which must be set."""
        host, _, port = self.mail_server.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def is_mail_local(self) -> bool:
        """Return whether the server is on this machine, so that nobody can read what goes there."""
        host, _ = self.mail_address
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def allowed_domains(self) -> frozenset[str]:
        """Return the domains of recipients; none without a server."""
        domains = frozenset(part.strip().lower() for part in self.mail_domains.split(",") if part.strip())
        return domains if self.mail_server and self.mail_from else frozenset()

    def read_mail_password(self) -> str:
        """Return the password. Raise ServiceError if its variable is not set for this process."""
        name = self.mail_password.removeprefix(_ENV)
        password = os.environ.get(name)
        if password is None:
            raise ServiceError(f"mail_password names {name}, which is not set for this process")
        return password
