"""The words of a kernel's parameter block, declared once: their positions, packing, and which are addresses."""

from __future__ import annotations

import re
import struct
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

COUNTER, FAULT, NUM_TASKS, FIRST_WORD = 0, 1, 2, 3  # in every parameter block; a kernel's own words start at the last

_WORD = re.compile(r"([a-z]\w*)(\*|:f64)?")


class Block:
    """The declared words of a kernel in order: `rows` an int64, `query*` an address, `eps:f64` a float64.

    A call passes their numbers as one tuple in this order; a wrong count, or a float for an int64, is a `struct.error`.
    """

    at: Any
    """The position of each word, by name: a namedtuple, since numba compiles a global one to constants."""
    addresses: tuple[int, ...]
    """Indexes of the words that are addresses; 0 is the first of the kernel's own."""
    size_bytes: int
    """Including the words that every block starts with."""

    def __init__(self, declaration: str) -> None:
        words = [_WORD.fullmatch(word) for word in declaration.split()]
        assert all(words), f"{declaration!r} has a word that is none of name, name* and name:f64"
        names, kinds = zip(*(word.groups() for word in words if word), strict=True)
        self.at = namedtuple("At", names)(*range(FIRST_WORD, FIRST_WORD + len(names)))
        self.addresses = tuple(index for index, kind in enumerate(kinds) if kind == "*")
        self._format = struct.Struct("=3q" + "".join("d" if kind == ":f64" else "q" for kind in kinds))
        self.size_bytes = self._format.size

    def write(self, target: Any, offset: int, num_tasks: int, words: Sequence[float]) -> None:
        """Write the parameter block of a call into a buffer, `offset` bytes from its start."""
        self._format.pack_into(target, offset, 0, 0, num_tasks, *words)

    def named(self, words: Sequence[float]) -> Any:
        """Return the words of a call by name."""
        return type(self.at)._make(words)
