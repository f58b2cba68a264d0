"""Restrict this process and its children to reading certain folders (Landlock, Linux 5.13).

Source: the kernel's Documentation/userspace-api/landlock.rst.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path

from confined.libc import libc

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every machine
_ASK_VERSION, _BENEATH = 1, 1  # LANDLOCK_CREATE_RULESET_VERSION, LANDLOCK_RULE_PATH_BENEATH
_PR_SET_NO_NEW_PRIVS = 38
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_FILE_RIGHTS = ((5, 16), (3, 15), (2, 14), (1, 13))
"""Version, and the number of file rights it knows: the kernel refuses rules about unknown rights."""
_NETWORK = (4, 0b11)  # from this version on: binding and connecting
_SCOPES = (6, 0b11)  # abstract Unix sockets, and signals to processes outside


def version() -> int:
    """Return the kernel's Landlock version, 0 where it is missing or off."""
    return max(0, int(libc().syscall(_CREATE_RULESET, None, 0, _ASK_VERSION)))


def restrict(folders: Iterable[Path]) -> bool:
    """Restrict this process and its children to reading these folders; False where the kernel cannot."""
    abi = version()
    if not abi:
        return False
    rights = next((1 << count) - 1 for since, count in _FILE_RIGHTS if abi >= since)
    network, scopes = (bits if abi >= since else 0 for since, bits in (_NETWORK, _SCOPES))
    attributes = struct.pack("@QQQ", rights, network, scopes)[: 24 if scopes else 16 if network else 8]
    ruleset = libc().syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return False
    try:
        for folder in folders:
            _allow_reading(ruleset, folder)
        is_bound = libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
        return is_bound and bool(libc().syscall(_RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow_reading(ruleset: int, folder: Path) -> None:
    """Allow reading below a folder; a missing one needs no rule."""
    try:
        descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = _READ_FILE | (_READ_FOLDER if folder.is_dir() else 0)
        libc().syscall(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)
