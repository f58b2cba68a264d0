"""Runs one program that dies with its parent, and as another user where asked. A script of its own, not a module.

A fresh interpreter does this between fork and exec, where code in a forked copy of a threaded process may hang.
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
    """Set the process up as the arguments say, then become the command."""
    death_signal, parent, uid, gid, reach, *command = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if uid != "-":
        become(libc, uid=int(uid), gid=int(gid), keeps_reach=reach == "reach")
    # Last, since a change of user clears it.
    _check(libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0))
    if os.getppid() != int(parent):  # the parent died before the line above
        sys.exit(1)
    os.execv(command[0], command)


def become(libc: ctypes.CDLL, *, uid: int, gid: int, keeps_reach: bool) -> None:
    """Turn from root into `uid`; with `keeps_reach` file permissions still do not stop the process.

    Postgres refuses to run as root, while root's files may lie in a folder that is closed to everyone else.
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
