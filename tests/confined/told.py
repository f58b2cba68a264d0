"""A child that obeys commands of four letters."""

from __future__ import annotations

import json
import os
import signal
import sys


def main() -> None:
    while word := sys.stdin.buffer.read(4).decode():
        if word == "dies":
            os.abort()
        elif word == "stop":
            signal.pause()
        elif word == "ends":
            sys.exit(3)
        elif word == "says":
            sys.stdout.buffer.write(json.dumps(dict(os.environ)).encode() + b"\0")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
