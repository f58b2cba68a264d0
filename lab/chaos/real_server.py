"""Becomes a real server: `python -m lab.chaos.real_server SOCKET COMMAND…`, in which {socket} is the socket's path."""

from __future__ import annotations

import os
import sys


def main(socket: str, *command: str) -> None:
    """Replace this process, so that faults hit the server itself. It has packages of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [word.replace("{socket}", socket) for word in command]
    os.execvpe(words[0], words, environment)


if __name__ == "__main__":
    main(*sys.argv[1:])
