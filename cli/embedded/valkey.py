"""The embedded Valkey: hints between the processes of a machine, over a unix socket or a local port."""

from __future__ import annotations

import signal
import socket
from dataclasses import dataclass
from pathlib import Path

from cli.embedded.binaries import find_valkey
from cli.embedded.child import ChildSpec
from cli.embedded.leftovers import wait_for_old_server
from cli.embedded.sockets import socket_folder

_CONNECT_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Valkey:
    """A server that is started as `spec`; `url` is for Celery (and, with a port, for any client)."""

    spec: ChildSpec
    url: str


def prepare_valkey(folder: Path, *, log_path: Path, run_dir: Path, port: int | None = None) -> Valkey:
    """Return a Valkey with an append-only file in `folder`, listening on a socket or on `port` of 127.0.0.1."""
    folder = folder.absolute()
    program = find_valkey()
    address: Path | tuple[str, int]
    if port is None:
        address = socket_folder(run_dir) / "valkey.sock"
        listen = ["--port", "0", "--unixsocket", str(address), "--unixsocketperm", "700"]
        url = f"redis+socket://{address}?virtual_host=0"
    else:
        address = ("127.0.0.1", port)
        listen = ["--port", str(port), "--bind", "127.0.0.1"]
        url = f"redis://127.0.0.1:{port}/0"
    # fmt: off
    command = [
        str(program), *listen, "--dir", str(folder), "--daemonize", "no",
        "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--maxmemory-policy", "noeviction",
        "--hz", "2",  # timer ticks per second; the default 10 is mostly idle work
    ]
    # fmt: on
    spec = ChildSpec(
        name="valkey",
        command=command,
        log_path=log_path,
        is_ready=lambda: answers_ping(address),
        before_start=lambda: _clear_leftovers(folder, address, program.name),
        stop_signal=signal.SIGTERM,
        stop_seconds=10.0,
    )
    return Valkey(spec=spec, url=url)


def _clear_leftovers(folder: Path, address: Path | tuple[str, int], program: str) -> None:
    """Wait for a server that is shutting down: it removes its socket at the end, which could be ours by then."""
    wait_for_old_server(folder, program=program)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # hints may be lost, and so may their folder
    if isinstance(address, Path):
        address.unlink(missing_ok=True)


def answers_ping(address: Path | tuple[str, int]) -> bool:
    """Return whether a server at `address` answers PING; one that is loading its file does not."""
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as connection:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(str(address) if isinstance(address, Path) else address)
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
