"""The servers of an embedded stack: its own Postgres, Valkey and folder of objects, or those that it is to use.

A URL in the environment may be left over from another stack, so it is used only on request.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from cli.data_dir import DataDir
from cli.embedded.child import ChildSpec
from cli.embedded.postgres import Postgres, prepare_postgres
from cli.embedded.sockets import socket_path
from cli.embedded.valkey import prepare_valkey
from cli.supervisor import Supervisor
from jobs.access import PREPARE, SERVICE

_DATABASE, _REDIS, _STORAGE = ("TOKENMILL_DATABASE_URL", "TOKENMILL_REDIS_URL", "TOKENMILL_STORAGE_URL")
_PREPARE, _OWNER = ("TOKENMILL_DATABASE_PREPARE_URL", "TOKENMILL_DATABASE_OWNER_URL")
URLS = (_DATABASE, _PREPARE, _REDIS, _STORAGE)
"""What roles elsewhere on this machine need. The owner's they never have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Servers that are to be started, and where they will be found. Make one with `plan_servers`."""

    environment: Mapping[str, str]
    """That of the roles."""
    owner_url: str
    """The database for whoever makes its schema and its database roles."""
    postgres: Postgres | None
    """None: somebody else's is used."""
    specs: Sequence[ChildSpec]

    def start(self, supervisor: Supervisor) -> None:
        """Start them and wait until they answer; a Postgres of ours has its database then. Raises ServiceError."""
        supervisor.start(self.specs)
        if self.postgres is not None:
            self.postgres.create_database()


def chosen_environment(
    data_dir: DataDir, defaults: Mapping[str, str], *, is_external: bool, say: Callable[[str], None]
) -> dict[str, str]:
    """Return the environment in which the URLs are those of servers to be used, and of no others; say which."""
    environment = {**defaults, **os.environ}
    for variable, ours in _our_places(data_dir).items():
        url = environment.get(variable)
        if url is None:
            continue
        if _is_in(ours, url):
            del environment[variable]  # ours, as in a shell with the exports of `--show-env`: to be started
        elif is_external:
            say(f"{variable} is set: using {_shown(url)}")
        else:
            del environment[variable]
            say(f"{variable} is set to {_shown(url)}: not used, this stack has its own. To use it: --external-servers")
    return environment


def plan_servers(data_dir: DataDir, environment: Mapping[str, str]) -> Servers:
    """Return the servers that the environment does not name. Raises ServiceError where one is not installed."""
    found = {_STORAGE: data_dir.objects.as_uri(), **environment}
    owner_url = found.pop(_OWNER, "")
    specs = []
    postgres = None
    if _DATABASE not in found:
        postgres = prepare_postgres(
            data_dir.postgres, log_path=data_dir.logs / "postgres.log", run_dir=data_dir.run / "postgres"
        )
        owner_url, found[_DATABASE] = postgres.url(), postgres.url(user=SERVICE)
        found[_PREPARE] = postgres.url(user=PREPARE)
        specs.append(postgres.spec)
    if _REDIS not in found:
        valkey = prepare_valkey(data_dir.valkey, log_path=data_dir.logs / "valkey.log", run_dir=data_dir.run / "valkey")
        found[_REDIS] = valkey.url
        specs.append(valkey.spec)
    return Servers(environment=found, owner_url=owner_url or found[_DATABASE], postgres=postgres, specs=specs)


def _our_places(data_dir: DataDir) -> Mapping[str, Path]:
    """Return where our own servers are found: the folders of their sockets, and that of the objects."""
    databases = dict.fromkeys((_DATABASE, _PREPARE, _OWNER), socket_path(data_dir.run / "postgres"))
    return {**databases, _REDIS: socket_path(data_dir.run / "valkey"), _STORAGE: data_dir.objects}


def _is_in(place: Path, url: str) -> bool:
    parts = urlsplit(url)
    path = Path(parts.path)
    return parse_qs(parts.query).get("host") == [str(place)] or place in (path.parent, path)


def _shown(url: str) -> str:
    """Return a URL without a password, which may stand in its query, too."""
    parts = urlsplit(url)
    at = f"@{parts.netloc.rpartition('@')[2]}" if "@" in parts.netloc else parts.netloc
    user = f"{parts.username}" if parts.username and "@" in parts.netloc else ""
    return parts._replace(netloc=f"{user}{at}", query="").geturl()
