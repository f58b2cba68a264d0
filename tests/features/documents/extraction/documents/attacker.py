"""Attempts of hostile code inside a reader that it has taken over: one attack per document, its outcome as JSON."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from features.documents.extraction.documents.limits import Limits, Progress
from features.documents.extraction.documents.process.child import serve
from features.documents.extraction.documents.process.frames import HEAD, Kind

MODULE = "tests.features.documents.extraction.documents.attacker"
NOBODY = 65534
WRITTEN = b"taken over"
LIBC = ctypes.CDLL(None, use_errno=True)
_NUMBERS = {  # fork, clone, clone3, rt_sigqueueinfo, tkill, ptrace, keyctl, prlimit64
    "x86_64": (57, 56, 435, 129, 200, 101, 250, 302),
    "aarch64": (None, 220, 435, 138, 130, 117, 219, 261),
}
FORK, CLONE, CLONE3, SIGQUEUE, TKILL, PTRACE, KEYCTL, PRLIMIT = _NUMBERS[platform.machine()]
MEMFD = {"x86_64": 319, "aarch64": 279}[platform.machine()]
WRITE_INTO = {"x86_64": 311, "aarch64": 271}[platform.machine()]
EXECVEAT = {"x86_64": 322, "aarch64": 281}[platform.machine()]
PIDFD_SEND, IO_URING, PIDFD_OPEN, PIDFD_GETFD = 424, 425, 434, 438
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000

Target = dict[str, Any]


def called(number: int | None, *arguments: Any) -> int:
    """Make a system call by its number. Raises OSError."""
    if number is None:
        raise PermissionError(errno.ENOSYS, "this machine has no such call")
    return checked(
        int(LIBC.syscall(number, *(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)))
    )


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def write_memory(process_id: int, address: int) -> None:
    with Path(f"/proc/{process_id}/mem").open("r+b", buffering=0) as memory:
        memory.seek(address)
        memory.write(WRITTEN)


def read_environment(process_id: int) -> None:
    Path(f"/proc/{process_id}/environ").read_bytes()


def write_into(process_id: int, address: int) -> None:
    source = ctypes.create_string_buffer(WRITTEN)
    local = struct.pack("@PN", ctypes.addressof(source), len(WRITTEN))
    remote = struct.pack("@PN", address, len(WRITTEN))
    called(WRITE_INTO, process_id, local, 1, remote, 1, 0)


def write_through_a_mapping(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    with mmap.mmap(descriptor, 0) as mapped:
        mapped[:1] = b"x"


def own_signals_to(process_id: int) -> None:
    """Let the kernel signal another process when a pipe of this one is readable."""
    fcntl.fcntl(0, fcntl.F_SETOWN, process_id)


def child_of(start: Callable[[], int]) -> int:
    """Start a process that stays behind, and return its id."""
    process_id = start()
    if process_id == 0:
        time.sleep(60)
        os._exit(0)
    return process_id


def clone3() -> int:
    arguments = struct.pack("@11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    return called(CLONE3, ctypes.create_string_buffer(arguments, len(arguments)), len(arguments))


def limit_another(process_id: int) -> None:
    called(PRLIMIT, process_id, resource.RLIMIT_NOFILE, struct.pack("@QQ", 16, 16), None)


def run_a_program() -> None:
    os.execv("/bin/true", ["true"])


def run_a_thread() -> str:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    return "thread"


def descriptors() -> list[int]:
    """Return the open descriptors, without a folder that lists them."""
    found = []
    for number in range(256):
        with suppress(OSError):
            os.fstat(number)
            found.append(number)
    return found


def hang() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    LIBC.prctl(1, 0, 0, 0, 0)  # PR_SET_PDEATHSIG: no signal
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # with which its parent sees its progress
    while True:
        time.sleep(1)


ATTACKS: dict[str, Callable[[Target], Any]] = {
    "write the worker's memory": lambda to: write_memory(to["worker"], to["address"]),
    "write its parent's memory": lambda to: write_memory(os.getppid(), to["address"]),
    "write into the worker": lambda to: write_into(to["worker"], to["address"]),
    "trace the worker": lambda to: called(PTRACE, 16, to["worker"], 0, 0),
    "open the worker's descriptors": lambda to: called(PIDFD_GETFD, to["descriptor"], 0, 0),
    "signal the worker": lambda to: os.kill(to["worker"], 0),
    "signal its parent": lambda _: os.kill(os.getppid(), 0),
    "kill a stranger": lambda to: os.kill(to["stranger"], signal.SIGKILL),
    "kill a stranger's thread": lambda to: called(TKILL, to["stranger"], signal.SIGKILL),
    "kill its group": lambda _: os.killpg(0, 0),
    "queue a signal": lambda to: called(SIGQUEUE, to["stranger"], 0, struct.pack("@iii", 0, 0, -1) + bytes(116)),
    "signal by a descriptor": lambda to: called(PIDFD_SEND, to["descriptor"], 0, 0, 0),
    "signal by a pipe": lambda to: own_signals_to(to["stranger"]),
    "slow a stranger down": lambda to: os.setpriority(os.PRIO_PROCESS, to["stranger"], 19),
    "move a stranger": lambda to: os.sched_setaffinity(to["stranger"], {0}),
    "limit a stranger": lambda to: limit_another(to["stranger"]),
    "truncate": lambda to: os.truncate(to["file"], 0),
    "chmod": lambda to: os.chmod(to["file"], 0o777),
    "touch": lambda to: os.utime(to["file"], (0, 0)),
    "link": lambda to: os.link(to["file"], to["file"] + ".link"),
    "symlink": lambda to: os.symlink("/etc/passwd", to["file"] + ".symlink"),
    "make a folder": lambda to: os.mkdir(to["file"] + ".folder"),
    "make a pipe": lambda to: os.mkfifo(to["file"] + ".pipe"),
    "make a file": lambda to: os.open(to["file"] + ".new", os.O_CREAT | os.O_WRONLY),
    "make a file without a name": lambda to: os.open(os.path.dirname(to["file"]), os.O_TMPFILE | os.O_RDWR),
    "write a file": lambda to: os.open(to["file"], os.O_WRONLY | os.O_APPEND),
    "write through a mapping": lambda to: write_through_a_mapping(to["file"]),
    "set an attribute": lambda to: os.setxattr(to["file"], "user.a", b"b"),
    "rename": lambda to: os.rename(to["file"], to["file"] + ".moved"),
    "delete": lambda to: os.unlink(to["file"]),
    "fork": lambda _: child_of(os.fork),
    "fork by number": lambda _: child_of(lambda: called(FORK)),
    "fork by clone": lambda _: child_of(lambda: called(CLONE, signal.SIGCHLD, 0, 0, 0, 0)),
    "fork by clone3": lambda _: child_of(clone3),
    "run a program": lambda _: run_a_program(),
    "run a program by a descriptor": lambda _: called(EXECVEAT, 0, b"", 0, 0, 0x1000),
    "open a socket": lambda _: socket.socket(),
    "open a socket pair": lambda _: socket.socketpair(),
    "open a socket in libc": lambda _: checked(LIBC.socket(2, 1, 0)),
    "open a ring": lambda _: called(IO_URING, 4, bytes(256)),
    "make a file of memory": lambda _: called(MEMFD, b"a", 0),
    "open a process": lambda to: called(PIDFD_OPEN, to["stranger"], 0),
    "read the keyring": lambda _: called(KEYCTL, 0, -3, 0),
    "be heard no more": lambda _: checked(LIBC.prctl(1, 0, 0, 0, 0)),
    "be dumped": lambda _: checked(LIBC.prctl(4, 1, 0, 0, 0)),
    "have new users": lambda _: checked(LIBC.unshare(_NEW_USER)),
    "have new mounts": lambda _: checked(LIBC.unshare(_NEW_USER | _NEW_MOUNTS)),
}
"""Each returns where it has succeeded, and raises OSError if it was refused."""
READS: dict[str, Callable[[Target], Any]] = {
    "read the worker's environment": lambda to: read_environment(to["worker"]),
    "read its parent's environment": lambda _: read_environment(os.getppid()),
    "read a file": lambda to: Path(to["file"]).read_bytes(),
    "list a folder": lambda to: os.listdir(os.path.dirname(to["file"])),
    "list processes": lambda _: os.listdir("/proc"),
    "read its own mappings": lambda _: Path("/proc/self/maps").read_bytes(),
}
"""Refused only by Landlock."""
NONSENSE: dict[str, bytes] = {
    "an answer without end": HEAD.pack(Kind.DOCUMENT, 1 << 60),
    "a kind that there is not": HEAD.pack(99, 0),
    "an error that is no JSON": HEAD.pack(Kind.ERROR, 1) + b"{",
    "an error of no kind": HEAD.pack(Kind.ERROR, 2) + b"[]",
    "a code that there is not": HEAD.pack(Kind.ERROR, 32) + b'{"code":"mine","message":"mine"}',
    "pictures without end": HEAD.pack(Kind.PICTURE, 0) * 20_000,
    "no answer": b"",
}
"""Written in place of an answer; then the process ends."""
OTHERS: dict[str, Callable[[Target], Any]] = {
    "run a thread": lambda _: run_a_thread(),
    "hang": lambda _: hang(),
    "take over": lambda _: stolen.append(None),
    "tell what was read": lambda _: [each for each in stolen if each is not None],
    "who": lambda _: [os.getpid(), sorted(os.environ), descriptors()],
}


stolen: list[str | None] = []
"""The documents that the taken-over process has read since, after a first None."""


def answer_nonsense(written: bytes) -> None:
    while written:
        written = written[os.write(1, written) :]
    os._exit(0)


def attack(content: bytes, name: str, limits: Limits, progress: Progress) -> bytes:
    """Return the outcome: `done` with the result, or the error's name."""
    if name in NONSENSE:
        answer_nonsense(NONSENSE[name])
    if name == "echo":
        return echoed(content)
    try:
        return orjson.dumps(["done", {**ATTACKS, **READS, **OTHERS}[name](orjson.loads(content))], default=repr)
    except OSError as error:
        return orjson.dumps([errno.errorcode.get(error.errno or 0, str(error)), None])


def echoed(content: bytes) -> bytes:
    """Return the content; in a process that was taken over, whatever the attacker chooses."""
    if not stolen:
        return content
    stolen.append(content.decode())
    return b"total 99.99"


def become_nobody() -> None:
    """Drop root if necessary; the process's dumps are then treated as for any other user."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        LIBC.prctl(4, 1, 0, 0, 0)


if __name__ == "__main__":
    become_nobody()
    sys.dont_write_bytecode = True
    serve(attack, MODULE)
