"""The servers of an embedded stack: its own Postgres, Valkey and folder of objects, or external ones.

A URL in the environment may be a leftover of another stack, so it is used only on request.
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
"""The variables that roles on this machine need. They never get the owner's URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Servers to start, and the URLs of all. Create it with `plan_servers`."""

    environment: Mapping[str, str]
    """The environment of the roles."""
    owner_url: str
    """The database as its owner, who creates the schema and the database roles."""
    postgres: Postgres | None
    """None if an external one is used."""
    specs: Sequence[ChildSpec]

    def start(self, supervisor: Supervisor) -> None:
        """Start the servers, wait until they are ready, and create our database. Raises ServiceError."""
        supervisor.start(self.specs)
        if self.postgres is not None:
            self.postgres.create_database()


def chosen_environment(
    data_dir: DataDir, defaults: Mapping[str, str], *, is_external: bool, say: Callable[[str], None]
) -> dict[str, str]:
    """Return the environment with only the URLs of servers to use; report which."""
    environment = {**defaults, **os.environ}
    for variable, ours in _our_places(data_dir).items():
        url = environment.get(variable)
        if url is None:
            continue
        if _is_in(ours, url):
            del environment[variable]  # our own, as in a shell with the exports of `--show-env`
        elif is_external:
            say(f"{variable} is set: using {_shown(url)}")
        else:
            del environment[variable]
            say(f"{variable} is set to {_shown(url)}: not used, this stack has its own. To use it: --external-servers")
    return environment


def plan_servers(data_dir: DataDir, environment: Mapping[str, str]) -> Servers:
    """Plan the servers that the environment does not name. Raises ServiceError if one is not installed."""
    urls = {_STORAGE: data_dir.objects.as_uri(), **environment}
    owner_url = urls.pop(_OWNER, "")
    specs = []
    postgres = None
    if _DATABASE not in urls:
        postgres = prepare_postgres(
            data_dir.postgres, log_path=data_dir.logs / "postgres.log", run_dir=data_dir.run / "postgres"
        )
        owner_url, urls[_DATABASE] = postgres.url(), postgres.url(user=SERVICE)
        urls[_PREPARE] = postgres.url(user=PREPARE)
        specs.append(postgres.spec)
    if _REDIS not in urls:
        valkey = prepare_valkey(data_dir.valkey, log_path=data_dir.logs / "valkey.log", run_dir=data_dir.run / "valkey")
        urls[_REDIS] = valkey.url
        specs.append(valkey.spec)
    return Servers(environment=urls, owner_url=owner_url or urls[_DATABASE], postgres=postgres, specs=specs)


def _our_places(data_dir: DataDir) -> Mapping[str, Path]:
    """Return the places of our own servers: the folders of their sockets, and that of the objects."""
    databases = dict.fromkeys((_DATABASE, _PREPARE, _OWNER), socket_path(data_dir.run / "postgres"))
    return {**databases, _REDIS: socket_path(data_dir.run / "valkey"), _STORAGE: data_dir.objects}


def _is_in(place: Path, url: str) -> bool:
    parts = urlsplit(url)
    path = Path(parts.path)
    return parse_qs(parts.query).get("host") == [str(place)] or place in (path.parent, path)


def _shown(url: str) -> str:
    """Return a URL without its password, which may also be in the query."""
    parts = urlsplit(url)
    at = f"@{parts.netloc.rpartition('@')[2]}" if "@" in parts.netloc else parts.netloc
    user = f"{parts.username}" if parts.username and "@" in parts.netloc else ""
    return parts._replace(netloc=f"{user}{at}", query="").geturl()
