"""Runs Python as on a kernel that lacks some calls: `python -m tests.confined.refusing 444,445 -m confined.probe`."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

LANDLOCK = (444, 445, 446)  # on every architecture


def main() -> None:
    numbers = [int(each) for each in sys.argv[1].split(",")]
    code = [(0x20, 0, 0, 0)]
    for number in numbers:
        code += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 38)]  # ENOSYS
    code.append((0x06, 0, 0, 0x7FFF0000))
    program = b"".join(struct.pack("@HBBI", *each) for each in code)
    instructions = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(code), ctypes.addressof(instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, header, 0, 0) == 0
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])


if __name__ == "__main__":
    main()
