"""Calls a command of `tests.forked.server`. A script, started without `site`: the standard library alone.

Arguments: the server's socket, then the command as it was typed. A caller that is killed takes its command with it.
"""

from __future__ import annotations

import json
import os
import socket
import sys

path, *arguments = sys.argv[1:]
call = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(path)
    socket.send_fds(server, [json.dumps(call).encode()], [0, 1, 2])
    status = int(server.recv(16))
sys.exit(status if status >= 0 else 128 - status)
