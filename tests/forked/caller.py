"""Calls a program of `tests.forked.server`. A script, started without `site`: the standard library alone.

Arguments: the server's socket, then the program as it was typed. Signals that end a program are sent on to it, a caller
that is killed takes it with it, and its end is the caller's.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from contextlib import suppress

_SENT_ON = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM}


def main(path: str, arguments: list[str]) -> int:
    """Run the program; return its exit code, negative for a signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SENT_ON)
    descriptors = _open_descriptors()
    call = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "descriptors": descriptors,
        "is_interruptible": signal.getsignal(signal.SIGINT) is not signal.SIG_IGN,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        socket.send_fds(server, [json.dumps(call).encode()], descriptors)
        for descriptor in descriptors[3:]:
            os.close(descriptor)  # now the program's: its other end shall see when the program closes it
        _, (program,), *_ = socket.recv_fds(server, 16, 1)

        def send_on(number: int, _: object) -> None:
            with suppress(ProcessLookupError):  # it ends at this moment
                signal.pidfd_send_signal(program, number)

        for number in _SENT_ON:
            signal.signal(number, send_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SENT_ON)
        return int(server.recv(16))


def _open_descriptors() -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            os.fstat(int(name))
        except OSError:  # that of the listing
            continue
        found.append(int(name))
    return sorted(found)


def _end_alike(status: int) -> None:
    """End with an exit code, or by a signal if it is negative."""
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


_end_alike(main(sys.argv[1], sys.argv[2:]))
