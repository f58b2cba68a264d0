"""The warm process itself: it has loaded its modules, forks on its parent's request, and ends its forks."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import IO

from confined.isolation import seal
from confined.warm_words import CODE, END, FORK, MICROSECONDS, SIZE, TIME

_PROCESSOR_TIME = 2  # CPUCLOCK_SCHED: Linux makes the clock id of a process from its number and this

Handle = Callable[[IO[bytes], IO[bytes], int], None]
"""Serves requests from its input stream to its output stream, in a fork of the process given by id.

It confines itself before it reads any untrusted input.
"""


def serve(ready: bytes, handle: Handle) -> None:
    """Fork for one parent, over the socket on standard input, until the parent closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles a terminal's Ctrl-C
    control = socket.socket(fileno=os.dup(0))
    seal()
    gc.collect()
    gc.freeze()  # forks keep sharing pages that a collection would otherwise write to
    control.sendall(SIZE.pack(len(ready)) + ready)
    process_id = 0
    while True:
        word, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if word == FORK:
            process_id = _forked(descriptors, handle)
        elif word == TIME:
            control.sendall(MICROSECONDS.pack(_microseconds(process_id)))
        elif word == END:
            control.sendall(CODE.pack(*_end(process_id)))
            process_id = 0
        else:
            break
    if process_id:
        _end(process_id)


def _forked(descriptors: list[int], handle: Handle) -> int:
    """Return the id of a serving fork; raises OSError where there is no memory for one, which ends this process."""
    parent_id = os.getpid()
    process_id = os.fork()
    if process_id == 0:
        _run(descriptors, handle, parent_id)
    for descriptor in descriptors:
        os.close(descriptor)
    return process_id


def _run(descriptors: list[int], handle: Handle, parent_id: int) -> None:
    """Serve and exit, without the parent's other descriptors."""
    try:
        for own, inherited in enumerate(descriptors):
            os.dup2(inherited, own)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        with open(0, "rb", closefd=False) as source, open(1, "wb", closefd=False) as answers:
            handle(source, answers, parent_id)
        os._exit(0)
    finally:
        os._exit(1)


def _end(process_id: int) -> tuple[int, int]:
    """End the fork and return its code and processor time; it stays a child until then, so its id is not reused."""
    assert process_id, "there is a fork"
    os.kill(process_id, signal.SIGKILL)
    _, status, used = os.wait4(process_id, 0)
    return os.waitstatus_to_exitcode(status), round((used.ru_utime + used.ru_stime) * 1e6)


def _microseconds(process_id: int) -> int:
    """Return the processor time of the fork so far; -1 where the system does not report it."""
    assert process_id, "there is a fork"
    if sys.platform != "linux":
        return -1
    try:
        return round(time.clock_gettime((~process_id << 3) | _PROCESSOR_TIME) * 1e6)
    except OSError:
        return -1
