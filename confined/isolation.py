"""Drop all access that this process does not need, in layers: one layer covers the gaps of another.

A process that forks others drops the shared part once (`seal`); each fork drops the rest (`confine`).
"""

from __future__ import annotations

import os
import platform
import re
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from confined import call_filter, landlock
from confined.libc import libc

_ROOT = Path(__file__).resolve().parents[1]
_OURS = ("confined", "features", "jobs", "protocol", "tokenmill")
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache")
_FONTS = ("/usr/share/fonts", "/usr/share/X11/fonts", "/usr/local/share/fonts")  # where PDFium finds substitutes
_PR_SET_DEATH_SIGNAL, _PR_SET_DUMPABLE = 1, 4
_NAMESPACES = 0x10000000 | 0x40000000 | 0x08000000  # CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWIPC
_CAPABILITIES = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_CAPSET = {"x86_64": 126, "aarch64": 91}
_MAX_THREADS = 64
_COUNTED_BY_NAMESPACE = (5, 14)
"""Since this kernel release RLIMIT_NPROC counts a user's processes per user namespace."""
_EVENTS = frozenset(
    {"socket.__new__", "socket.connect", "socket.getaddrinfo", "os.exec", "subprocess.Popen", "os.fork"}
)


class Layer(StrEnum):
    """One of the layers, by its name for operators."""

    CALLS = "calls"  # an allow-list of kernel calls
    FILES = "files"  # Landlock: only Python's own paths, and the system's fonts and libraries
    PARENT = "parent"  # ends with its parent, and is closed to other processes of its user
    NAMESPACES = "namespaces"  # its own users, network and IPC: many containers do not allow these


LAYERS = {
    Layer.CALLS: "an allow-list of kernel calls (seccomp)",
    Layer.FILES: "Python's own files only (Landlock)",
    Layer.PARENT: "an end with their parent, and no look into them",
    Layer.NAMESPACES: "users, networks and System V IPC of their own",
}
"""Description of each layer."""
REMEDIES = {
    Layer.CALLS: "use an x86-64 or aarch64 kernel with seccomp filters",
    Layer.FILES: (
        "use Linux 5.13 or newer with landlock in the kernel's `lsm=` list, and in a container a seccomp profile that "
        "allows the landlock_ calls"
    ),
    Layer.PARENT: "allow prctl",
    Layer.NAMESPACES: (
        "allow this user to make user namespaces: `sysctl user.max_user_namespaces` above 0, on Ubuntu also "
        "`kernel.apparmor_restrict_unprivileged_userns=0`, and in a container `--security-opt seccomp=FILE` with a "
        "profile that allows unshare, which Docker's own does not"
    ),
}
"""What to do on a Linux where a layer is missing."""
ESSENTIAL = frozenset({Layer.CALLS, Layer.FILES, Layer.PARENT})
"""Layers without which confinement has a gap: the filter refuses sockets and System V IPC without namespaces too."""


def seal() -> frozenset[Layer]:
    """Apply the layers that forks share; return those that could not be applied.

    Files opened later must be Python's own. Call it while there is only one thread.
    """
    if sys.platform != "linux":
        return frozenset({Layer.NAMESPACES, Layer.FILES, Layer.PARENT})
    put_on = {Layer.NAMESPACES: _leave_namespaces(), Layer.FILES: landlock.restrict(_readable())}
    _drop_capabilities()
    call_filter.program(platform.machine(), os.getpid())  # forks find all but their own part compiled
    put_on[Layer.PARENT] = libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
    return frozenset(layer for layer, is_on in put_on.items() if not is_on)


def confine(memory_bytes: int, *, parent_id: int, at_first_bytes: int | None = None) -> frozenset[Layer]:
    """Apply the remaining layers permanently, in all threads; return those that could not be applied.

    This process ends with process `parent_id`. `memory_bytes` is its address space, limited to `at_first_bytes` until
    `widen_memory`.
    """
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(kind, (0, 0))
    if sys.platform != "linux":
        sys.addaudithook(_refuse_events)
        return frozenset({Layer.PARENT, Layer.CALLS})
    resource.setrlimit(resource.RLIMIT_AS, (min(at_first_bytes or memory_bytes, memory_bytes), memory_bytes))
    put_on = {Layer.PARENT: _end_with(parent_id), Layer.CALLS: call_filter.install(os.getpid())}
    if not put_on[Layer.CALLS]:
        sys.addaudithook(_refuse_events)
    return frozenset(layer for layer, is_on in put_on.items() if not is_on)


def widen_memory() -> None:
    """Raise the address space limit to what `confine` has allowed."""
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def address_space_bytes() -> int:
    """Return this process's address space, 0 where the system does not report it; call it before `seal`."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()


def _end_with(parent_id: int) -> bool:
    is_set = libc().prctl(_PR_SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0) == 0
    if os.getppid() != parent_id:  # it ended before this process could subscribe to that
        os._exit(1)
    return bool(is_set)


def _leave_namespaces() -> bool:
    if libc().unshare(_NAMESPACES):
        return False
    release = re.match(r"(\d+)\.(\d+)", platform.release())
    if release is not None and (int(release[1]), int(release[2])) >= _COUNTED_BY_NAMESPACE:
        resource.setrlimit(resource.RLIMIT_NPROC, (_MAX_THREADS, _MAX_THREADS))
    return True


def _drop_capabilities() -> None:
    """Give up the extra rights of root, or of a namespace's owner."""
    if (number := _CAPSET.get(platform.machine())) is not None:
        libc().syscall(number, struct.pack("@Ii", _CAPABILITIES, 0), bytes(24))


def _readable() -> Iterator[Path]:
    """Yield the paths of Python, its packages, our code, libraries and fonts: no folder with data or settings."""
    places = {f"{base}/{name}" for base in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64")}
    places |= {place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")}
    places |= {*_LIBRARIES, *_FONTS, *(str(_ROOT / name) for name in _OURS)}
    yield from map(Path, sorted(places))


def _refuse_events(event: str, _: tuple[Any, ...]) -> None:
    if event in _EVENTS:
        raise PermissionError(f"confined code may not use {event}")
