"""Tests of what a confined process may still do, and of its filter's decisions for other machines."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from itertools import chain

import pytest

from confined.call_filter import program
from tests.floors import LIBRARIES

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's filters are Linux'")
ALLOW, REFUSE, ABSENT = 0x7FFF0000, 0x00050000 | errno.EACCES, 0x00050000 | errno.ENOSYS
OWN = 4711

CONFINED = """
import ctypes, os, socket, subprocess, sys, tempfile, threading
from confined.isolation import confine, seal
go, outcomes = threading.Event(), []
def attempts():
    go.wait()
    libc = ctypes.CDLL(None, use_errno=True)
    outcomes.append((libc.socket(2, 1, 0), ctypes.get_errno()))
    for attempt in (socket.socket, lambda: subprocess.run(["true"]), lambda: os.execv("/bin/true", ["true"]),
                    lambda: os.open("/tmp", os.O_TMPFILE | os.O_WRONLY), os.fork, lambda: bytearray(1 << 30)):
        try:
            attempt()
            outcomes.append("done")
        except (OSError, MemoryError) as error:
            outcomes.append(type(error).__name__)
earlier = threading.Thread(target=attempts)
earlier.start()
confine(1 << 30, parent_id=os.getppid())
go.set()
earlier.join()
print(*outcomes, sep="\\n")
"""

ABORTS = """
import os
from confined.isolation import confine, seal
seal()
confine(1 << 30, parent_id=os.getppid())
os.abort()
"""

IMPORTS = """
import sys
from importlib import import_module
from confined.isolation import seal
seal()
import_module(sys.argv[1])
"""

ORPHAN = """
import os
from confined.isolation import confine
confine(1 << 30, parent_id=1)
print("lives")
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)


@LINUX
def test_a_confined_process_has_no_sockets_programs_files_forks_and_little_memory_in_its_earlier_threads_too() -> None:
    refused = ["(-1, 13)", *["PermissionError"] * 5, "MemoryError"]
    assert run(CONFINED).stdout.splitlines() == refused


@LINUX
def test_a_confined_process_may_abort_so_that_its_parent_learns_of_a_lack_of_memory() -> None:
    assert run(ABORTS).returncode == -signal.SIGABRT


@LINUX
def test_a_process_whose_parent_has_ended_before_it_was_confined_ends() -> None:
    assert (run(ORPHAN).returncode, run(ORPHAN).stdout) == (1, "")


def decision(program: bytes, *, machine: int, number: int, arguments: Sequence[int] = ()) -> int:
    """Run a filter as the kernel would."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    call = struct.pack("<IIQ6Q", number, machine, 0, *padded)
    loaded, at = 0, 0
    while True:
        code, if_true, if_false, operand = struct.unpack_from("@HBBI", program, 8 * at)
        at += 1
        if code == 0x06:
            return int(operand)
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", call, operand)
        else:
            at += if_true if (loaded == operand if code == 0x15 else loaded & operand) else if_false


X86, ARM = ("x86_64", 0xC000003E), ("aarch64", 0xC00000B7)


@pytest.mark.parametrize(
    ("machine", "number", "arguments", "decided"),
    [
        (X86, 0, (), ALLOW),  # read
        (X86, 56, (0x3D0F00,), ALLOW),  # clone, as pthread_create calls it
        (X86, 56, (0x3D0F00 | 0x10000000,), REFUSE),  # with new users
        (X86, 56, (signal.SIGCHLD,), REFUSE),  # as fork does
        (X86, 57, (), REFUSE),  # fork
        (X86, 58, (), REFUSE),  # vfork
        (X86, 59, (), REFUSE),  # execve
        (X86, 62, (1, 9), REFUSE),  # kill
        (X86, 72, (0, 8, 1), REFUSE),  # fcntl F_SETOWN
        (X86, 72, (0, 3), ALLOW),  # F_GETFL
        (X86, 234, (OWN, OWN, 6), ALLOW),  # tgkill, as abort does
        (X86, 234, (OWN + 1, OWN + 1, 6), REFUSE),
        (X86, 257, (0, 0, os.O_RDONLY | os.O_CLOEXEC), ALLOW),  # openat
        (X86, 257, (0, 0, os.O_RDONLY | os.O_CREAT), REFUSE),
        (X86, 257, (0, 0, os.O_RDWR), REFUSE),
        (X86, 302, (0, 7), ALLOW),  # prlimit64
        (X86, 302, (1, 7), REFUSE),
        (X86, 435, (), ABSENT),  # clone3
        (X86, 0x40000000, (), REFUSE),  # x32's read
        (X86, 9999, (), REFUSE),
        (ARM, 63, (), ALLOW),  # read
        (ARM, 220, (0x3D0F00,), ALLOW),  # clone
        (ARM, 220, (signal.SIGCHLD,), REFUSE),
        (ARM, 56, (0, 0, os.O_RDONLY), ALLOW),  # openat
        (ARM, 56, (0, 0, os.O_WRONLY), REFUSE),
        (ARM, 129, (1, 9), REFUSE),  # kill
        (ARM, 221, (), REFUSE),  # execve
        (ARM, 435, (), ABSENT),
    ],
)
def test_the_filter_allows_what_changes_nothing_outside(
    machine: tuple[str, int], number: int, arguments: tuple[int, ...], decided: int
) -> None:
    name, audited = machine
    code = program(name, OWN)
    assert code is not None
    assert decision(code, machine=audited, number=number, arguments=arguments) == decided


def test_the_filter_refuses_the_calls_of_another_machine() -> None:
    code = program("x86_64", OWN)
    assert code is not None
    assert decision(code, machine=ARM[1], number=63) == REFUSE


def test_a_machine_whose_numbers_are_not_known_has_no_filter() -> None:
    assert program("riscv64", OWN) is None


@LINUX
@pytest.mark.parametrize("name", sorted(set(chain(*LIBRARIES.values()))))
def test_a_sealed_process_imports_what_confined_code_is_made_of(name: str) -> None:
    command = [sys.executable, "-c", IMPORTS, name]
    subprocess.run(command, check=True, timeout=60)
