"""Takes from this process what a reader of files does not need: memory, sockets, other programs, files to write.

Knows Linux' seccomp for two machines; elsewhere Python's own sockets are refused, and a library's are not.
"""

from __future__ import annotations

import ctypes
import platform
import resource
import struct
import sys
from typing import Any

# io_uring opens sockets without a call of `socket`; ptrace, process_vm_* and pidfd_getfd reach into other processes.
_NEW_CALLS = (425, 438)  # io_uring_setup, pidfd_getfd: the same number on every machine
_MACHINES = {  # AUDIT_ARCH_*; socket, connect, execve, execveat, ptrace, process_vm_readv and _writev; forks, where any
    "x86_64": (0xC000003E, (41, 42, 59, 322, 101, 310, 311, 57, 58, *_NEW_CALLS)),
    "aarch64": (0xC00000B7, (198, 203, 221, 281, 117, 270, 271, *_NEW_CALLS)),
}
_X32_CALLS = 0x40000000  # from here on the same calls once more, by numbers of x86-64's second interface
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER_MODE = 22, 38, 2
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_NOT_BELOW, _RETURN = 0x20, 0x15, 0x35, 0x06  # of classic BPF, on words
_NUMBER_AT, _MACHINE_AT = 0, 4  # in struct seccomp_data
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 13  # SECCOMP_RET_ERRNO with EACCES
_EVENTS = frozenset({"socket.__new__", "socket.connect", "socket.getaddrinfo", "os.exec", "subprocess.Popen"})


def confine(memory_bytes: int) -> None:
    """Confine this process for the rest of its life; threads that it has are not, so call it before there are any."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        _refuse_calls()
    sys.addaudithook(_refuse_events)


def _refuse_events(event: str, _: tuple[Any, ...]) -> None:
    if event in _EVENTS:
        raise PermissionError(f"a reader of documents may not use {event}")


def _refuse_calls() -> None:
    """Let the kernel refuse sockets and other programs. Raises OSError where it does not take the filter."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return
    program = _filter(*machine)
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    for option, *arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0), (_PR_SET_SECCOMP, _FILTER_MODE, header)):
        if libc.prctl(option, *arguments, 0, 0):
            number = ctypes.get_errno()
            raise OSError(number, "the kernel does not confine this process")


def _filter(machine: int, numbers: tuple[int, ...]) -> bytes:
    """Return a program of classic BPF: refuse these calls and all of another machine's, allow the rest."""
    tests = [(_JUMP_IF_EQUAL, number) for number in numbers] + [(_JUMP_IF_NOT_BELOW, _X32_CALLS)]
    count = len(tests)
    code = [(_LOAD, 0, 0, _MACHINE_AT), (_JUMP_IF_EQUAL, 0, count + 2, machine), (_LOAD, 0, 0, _NUMBER_AT)]
    code += [(test, count - index, 0, number) for index, (test, number) in enumerate(tests)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("@HBBI", *instruction) for instruction in code)
