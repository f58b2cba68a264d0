"""A command that is killed right after an event: arguments EVENT and those of `tokenmill`.

An event is the end of a request, such as `POST /v1/files`, or of a file's replacement, such as `replace out.jsonl`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import httpx2

from cli.main import main

_IDS = re.compile(r"/(file|batch)[_-]\w+")


def _kill_after(event: str) -> None:
    send, replace = httpx2.Client.send, Path.replace

    def note(happened: str) -> None:
        if happened == event:
            os.kill(os.getpid(), signal.SIGKILL)

    def sending(client: httpx2.Client, request: Any, **options: Any) -> Any:
        response = send(client, request, **options)
        note(f"{request.method} {_IDS.sub('/ID', request.url.path)}")
        return response

    def replacing(path: Path, target: Path) -> Path:
        replaced = replace(path, target)
        note(f"replace {target.name}")
        return replaced

    vars_of = {httpx2.Client: ("send", sending), Path: ("replace", replacing)}
    for kind, (name, function) in vars_of.items():
        setattr(kind, name, function)


if __name__ == "__main__":
    _kill_after(sys.argv.pop(1))
    main()
