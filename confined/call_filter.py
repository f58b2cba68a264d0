"""Restrict this process, in all its threads, to the kernel calls of some rules (seccomp, TSYNC)."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache

from confined.calls import Rule, own_rules, shared_rules
from confined.libc import libc

_MACHINES = {"x86_64": (0xC000003E, 317), "aarch64": (0xC00000B7, 277)}  # AUDIT_ARCH_*; the number of `seccomp`
_LOAD, _JUMP_IF_EQUAL, _JUMP_IF_SET, _RETURN = 0x20, 0x15, 0x45, 0x06  # of classic BPF, on words
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16  # in struct seccomp_data
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000  # SECCOMP_RET_*
_REFUSE, _ABSENT = _ERROR | errno.EACCES, _ERROR | errno.ENOSYS
_SET_FILTER, _ALL_THREADS = 1, 1  # SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC
_PR_SET_NO_NEW_PRIVS = 38

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def install(process_id: int) -> bool:
    """Refuse all other calls for the rest of this process's life; False where filters are unsupported."""
    machine = platform.machine()
    code = program(machine, process_id)
    if code is None:
        return False
    instructions = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(code) // 8, ctypes.addressof(instructions))
    if libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    _, seccomp = _MACHINES[machine]
    return bool(libc().syscall(seccomp, _SET_FILTER, _ALL_THREADS, header) == 0)


def program(machine: str, process_id: int) -> bytes | None:
    """Return a classic BPF program that allows a process what the rules allow, and refuses all else and other machines.

    `machine` is as `platform.machine()` names it; None for an unknown one.
    """
    shared = shared_part(machine)
    if shared is None:
        return None
    audited, _ = _MACHINES[machine]
    is_ours = ((_LOAD, 0, 0, _MACHINE_AT), (_JUMP_IF_EQUAL, 1, 0, audited), (_RETURN, 0, 0, _REFUSE))
    return _packed(*is_ours, (_LOAD, 0, 0, _NUMBER_AT)) + _compiled(own_rules(machine, process_id)) + shared


@lru_cache
def shared_part(machine: str) -> bytes | None:
    """Return the end of the program, which is the same for all processes: one that forks others compiles it once."""
    rules = shared_rules(machine)
    return None if rules is None else _compiled(rules) + _packed((_RETURN, 0, 0, _REFUSE))


def _compiled(rules: Sequence[Rule]) -> bytes:
    """Return classic BPF that decides about the calls of some rules, and passes others on to what follows."""
    code: list[Instruction] = []
    for rule in rules:
        decision = list(_decision(rule))
        code += [(_JUMP_IF_EQUAL, 0, len(decision), rule.number), *decision]
    return _packed(*code)


def _packed(*instructions: Instruction) -> bytes:
    return b"".join(struct.pack("@HBBI", *each) for each in instructions)


def _decision(rule: Rule) -> Iterator[Instruction]:
    """Yield the instructions for the rule's call; the last one returns."""
    if rule.is_absent or rule.argument is None:
        yield (_RETURN, 0, 0, _ABSENT if rule.is_absent else _ALLOW)
        return
    yield (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * rule.argument)  # the lower half: both machines are little-endian
    if rule.forbidden_bits:
        yield from ((_JUMP_IF_SET, 1, 0, rule.forbidden_bits), (_RETURN, 0, 0, _ALLOW))
    for value in rule.values:
        yield from ((_JUMP_IF_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))
    yield (_RETURN, 0, 0, _REFUSE)
