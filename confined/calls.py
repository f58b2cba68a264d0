"""The kernel calls that confined code may make, by machine: calls that are not listed are refused.

Numbers are those of Linux' `unistd.h` for the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

_UNLIMITED = frozenset(
    {"read", "readv", "pread64", "write", "writev", "close", "lseek", "dup", "dup2", "dup3", "fadvise64"}
    | {"fstat", "stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat"}
    | {"getcwd", "getdents64", "poll", "ppoll", "select", "pselect6"}
    | {"mmap", "mprotect", "munmap", "mremap", "madvise", "brk", "membarrier"}
    | {"rt_sigaction", "rt_sigprocmask", "rt_sigreturn", "sigaltstack", "restart_syscall", "getitimer", "setitimer"}
    | {"clock_gettime", "clock_getres", "clock_nanosleep", "nanosleep", "gettimeofday", "time", "times", "getrandom"}
    | {"futex", "set_robust_list", "set_tid_address", "rseq", "sched_yield", "sched_getaffinity", "getcpu"}
    | {"getpid", "getppid", "gettid", "getuid", "geteuid", "getgid", "getegid", "uname", "sysinfo"}
    | {"getrlimit", "getrusage", "exit", "exit_group"}
)
"""Calls that change nothing outside the process, whatever their arguments."""

_ABSENT = ("clone3", "openat2")
"""Their arguments are in memory, where a filter cannot see them; libc falls back where the kernel lacks these calls."""

_NUMBERS = {
    "x86_64": """
    read=0 write=1 open=2 close=3 stat=4 fstat=5 lstat=6 poll=7 lseek=8 mmap=9 mprotect=10 munmap=11 brk=12
    rt_sigaction=13 rt_sigprocmask=14 rt_sigreturn=15 ioctl=16 pread64=17 readv=19 writev=20 access=21 select=23
    sched_yield=24 mremap=25 madvise=28 dup=32 dup2=33 nanosleep=35 getitimer=36 setitimer=38 getpid=39 clone=56
    exit=60 uname=63 fcntl=72 getcwd=79 readlink=89 gettimeofday=96 getrlimit=97 getrusage=98 sysinfo=99 times=100
    getuid=102 getgid=104 geteuid=107 getegid=108 getppid=110 sigaltstack=131 prctl=157 gettid=186 time=201
    futex=202 sched_getaffinity=204 getdents64=217 set_tid_address=218 restart_syscall=219 fadvise64=221
    clock_gettime=228 clock_getres=229 clock_nanosleep=230 exit_group=231 tgkill=234 openat=257 newfstatat=262
    readlinkat=267 faccessat=269 pselect6=270 ppoll=271 set_robust_list=273 dup3=292 prlimit64=302 getcpu=309
    getrandom=318 membarrier=324 statx=332 rseq=334 clone3=435 openat2=437 faccessat2=439
    """,
    "aarch64": """
    getcwd=17 dup=23 dup3=24 fcntl=25 ioctl=29 faccessat=48 openat=56 close=57 getdents64=61 lseek=62 read=63
    write=64 readv=65 writev=66 pread64=67 pselect6=72 ppoll=73 readlinkat=78 newfstatat=79 fstat=80 exit=93
    exit_group=94 set_tid_address=96 futex=98 set_robust_list=99 nanosleep=101 getitimer=102 setitimer=103
    clock_gettime=113 clock_getres=114 clock_nanosleep=115 sched_getaffinity=123 sched_yield=124
    restart_syscall=128 tgkill=131 sigaltstack=132 rt_sigaction=134 rt_sigprocmask=135 rt_sigreturn=139 times=153
    uname=160 getrlimit=163 getrusage=165 prctl=167 getcpu=168 gettimeofday=169 getpid=172 getppid=173 getuid=174
    geteuid=175 getgid=176 getegid=177 gettid=178 sysinfo=179 brk=214 munmap=215 mremap=216 clone=220 mmap=222
    fadvise64=223 mprotect=226 madvise=233 prlimit64=261 getrandom=278 membarrier=283 statx=291 rseq=293
    clone3=435 openat2=437 faccessat2=439
    """,
}
"""Each listed call with its number."""

_THREAD_FLAGS = (0x003D0F00, 0x007D0F00)  # of pthread_create in glibc and in musl: CLONE_THREAD among them
_WRITES = 0o3 | 0o100 | 0o1000 | 0o20000000  # the access mode, O_CREAT, O_TRUNC, __O_TMPFILE
_FCNTL = (
    0,
    1,
    2,
    3,
    4,
    1030,
)  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC; no F_SETOWN, which signals
_IOCTL = (0x5401, 0x5421, 0x5450, 0x5451)  # TCGETS, FIONBIO, FIONCLEX, FIOCLEX
_PRCTL = (15, 16, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA, by which libc names memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What to do with a call: allow it, allow it for certain arguments, or answer that it does not exist."""

    number: int
    argument: int | None = None
    """Index of the argument, from 0; its lower 32 bits are compared."""
    values: tuple[int, ...] = ()
    """Allowed values; empty where `forbidden_bits` are given."""
    forbidden_bits: int = 0
    is_absent: bool = False


def shared_rules(machine: str) -> tuple[Rule, ...] | None:
    """Return the rules for all processes of a machine as `platform.machine()` names it; None for an unknown one."""
    numbers = _numbers(machine)
    return tuple(_shared_rules(numbers)) if numbers else None


def own_rules(machine: str, process_id: int) -> tuple[Rule, ...]:
    """Return the rules that name the process itself."""
    numbers, own = _numbers(machine), (process_id,)
    limited = {"tgkill": (0, own), "prlimit64": (0, (0, *own))}  # abort() signals its own process
    return tuple(_limited(numbers, limited))


@cache
def _numbers(machine: str) -> Mapping[str, int]:
    listing = _NUMBERS.get(machine, "")
    return {name: int(number) for name, _, number in (each.partition("=") for each in listing.split())}


def _shared_rules(numbers: Mapping[str, int]) -> Iterator[Rule]:
    for name, number in numbers.items():
        if name in _UNLIMITED:
            yield Rule(number=number)
        elif name in _ABSENT:
            yield Rule(number=number, is_absent=True)
    for name, argument in (("open", 1), ("openat", 2)):
        if name in numbers:
            yield Rule(number=numbers[name], argument=argument, forbidden_bits=_WRITES)
    yield from _limited(
        numbers, {"clone": (0, _THREAD_FLAGS), "fcntl": (1, _FCNTL), "ioctl": (1, _IOCTL), "prctl": (0, _PRCTL)}
    )


def _limited(numbers: Mapping[str, int], limited: Mapping[str, tuple[int, tuple[int, ...]]]) -> Iterator[Rule]:
    for name, (argument, values) in limited.items():
        yield Rule(number=numbers[name], argument=argument, values=values)
