"""Runs a program that dies with its parent, optionally as another user. A script, not a module.

A fresh interpreter does this, as Python code between fork and exec may hang in a process with threads.
Arguments: death signal, parent pid, uid or -, gid or -, "reach" or -, then the command.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1
LINUX_CAPABILITY_VERSION_3 = 0x20080522


def main(arguments: list[str]) -> None:
    """Set up the process, then execute the command."""
    death_signal, parent, uid, gid, reach, *command = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if uid != "-":
        become(libc, uid=int(uid), gid=int(gid), keeps_reach=reach == "reach")
    # Last, since changing the user clears it.
    _check(libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0))
    if os.getppid() != int(parent):  # the parent died before the line above
        sys.exit(1)
    os.execv(command[0], command)


def become(libc: ctypes.CDLL, *, uid: int, gid: int, keeps_reach: bool) -> None:
    """Change from root to `uid`; with `keeps_reach` the process still bypasses file permissions.

    Postgres refuses to run as root, while its files may be in a folder that is closed to other users.
    """
    if keeps_reach:
        _check(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    if keeps_reach:
        header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
        mask = 1 << CAP_DAC_OVERRIDE
        sets = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)  # effective, permitted, inheritable; then the high half
        _check(libc.capset(header, sets))
        _check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0))


def _check(answer: int) -> None:
    if answer != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    main(sys.argv[1:])
