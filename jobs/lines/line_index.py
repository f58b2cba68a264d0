"""The index of a batch's result files: for each line its number, file, place, size, status and code.

Blocks of columns in the order of lines, then a directory of the blocks, so that a page is read by ranges of bytes.
Pure: lines in, bytes out and back; no SQL, no storage.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress
from typing import NamedTuple, overload

import orjson

from jobs.lines.output_lines import failure_code
from jobs.settings import MIB

TAIL = struct.Struct("<Q8s")
"""The last bytes: the size of the directory before them, and the format."""
BYTES_A_LINE = 10
BLOCK_LINES = 4096
BLOCK_BYTES = 4 * MIB
"""A block ends after the line with which its lines have more bytes than this in the result files."""
MAX_KINDS = 1000
MAX_CODE = 200
"""Codes beyond these, a number and one of characters, are none in the index: an answer may have any."""
_FORMAT = b"tmlines1"


class Kind(NamedTuple):
    """What lines have in common: their file, status and code."""

    is_error: bool
    """Whether they are in the error file."""
    status_code: int | None
    """None: no response."""
    code: str | None
    """None: no error, or one without a code."""


ResultLine = tuple[int, bool, int | None, bytes]
"""The number of a line, whether it is in the error file, its status code, and its content without a line end."""

_ANSWERED = Kind(is_error=False, status_code=200, code=None)


def kind_of(line: bytes, *, is_error: bool, status_code: int | None) -> Kind:
    """Return the kind of a line of a result file."""
    if not is_error:
        return _ANSWERED if status_code == 200 else Kind(is_error, status_code, None)
    return Kind(is_error, status_code, failure_code(line))


class IndexedLine(NamedTuple):
    """One line of the result files."""

    line_no: int  # 0-based
    kind: Kind
    start: int  # in its file
    size: int  # bytes, with the line end


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive lines of the index."""

    first_line: int
    num_lines: int
    start: int
    """Its first byte in the index."""
    starts: tuple[int, int]
    """First bytes of its lines in the output file and in the error file."""
    counts: Mapping[int, int]
    """Numbers of lines by kind, those that it has."""

    @property
    def end(self) -> int:
        return self.start + BYTES_A_LINE * self.num_lines


class LineIndexWriter:
    """Writes an index while the result files are written: add the lines in their order, then `finish`."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._size = 0
        self._kinds: dict[tuple[bool, int | None, str | None], int] = {_ANSWERED: 0}
        self._blocks: list[Block] = []
        self._starts = (0, 0)
        # Columns of the lines that are in no block yet.
        self._numbers: list[int] = []
        self._sizes: list[int] = []
        self._ids: list[int] = []

    def add(self, page: Sequence[ResultLine]) -> None:
        """Add lines of the result files, a page at a time: as columns they take a third of the time."""
        self._numbers += [line_no for line_no, _, _, _ in page]
        self._sizes += [len(line) + 1 for _, _, _, line in page]
        self._ids += [
            0 if status_code == 200 and not is_error else self._id_of(line, is_error=is_error, status_code=status_code)
            for _, is_error, status_code, line in page
        ]
        self._end_blocks()

    def add_one(self, line_no: int, kind: Kind, size: int) -> None:
        """Add a line of `size` bytes, with its line end."""
        self._numbers.append(line_no)
        self._sizes.append(size)
        self._ids.append(self._id(kind))
        if len(self._numbers) == BLOCK_LINES:
            self._end_blocks()

    def finish(self) -> None:
        """Write the rest."""
        self._end_blocks()
        if self._numbers:
            self._end_block(len(self._numbers))
        blocks = [
            [each.first_line, each.num_lines, each.start, *each.starts, list(each.counts.items())]
            for each in self._blocks
        ]
        directory = orjson.dumps({"kinds": [list(each) for each in self._kinds], "blocks": blocks})
        self._write(directory + TAIL.pack(len(directory), _FORMAT))

    def _id_of(self, line: bytes, *, is_error: bool, status_code: int | None) -> int:
        code = failure_code(line) if is_error else None
        number = self._kinds.get((is_error, status_code, code))  # equal to its kind, and made in a third of the time
        return self._id(Kind(is_error, status_code, code)) if number is None else number

    def _id(self, kind: Kind) -> int:
        number = self._kinds.get(kind)
        if number is None:
            if kind.code is not None and (len(self._kinds) >= MAX_KINDS or len(kind.code) > MAX_CODE):
                kind = kind._replace(code=None)
            number = self._kinds.setdefault(kind, len(self._kinds))
        return number

    def _end_blocks(self) -> None:
        """Write the blocks that are full."""
        while self._numbers:
            ends = list(accumulate(self._sizes[:BLOCK_LINES]))
            num_lines = bisect_left(ends, BLOCK_BYTES) + 1
            if num_lines > len(ends):
                if len(ends) < BLOCK_LINES:
                    return
                num_lines = BLOCK_LINES
            self._end_block(num_lines)

    def _end_block(self, num_lines: int) -> None:
        numbers, sizes, ids = (column[:num_lines] for column in (self._numbers, self._sizes, self._ids))
        block = Block(
            first_line=numbers[0], num_lines=num_lines, start=self._size, starts=self._starts, counts=Counter(ids)
        )
        self._write(struct.pack(f"<{num_lines}I{num_lines}I{num_lines}H", *numbers, *sizes, *ids))
        self._blocks.append(block)
        self._size = block.end
        in_errors = {number for (is_error, _, _), number in self._kinds.items() if is_error}
        num_failed_bytes = sum(size for size, number in zip(sizes, ids, strict=True) if number in in_errors)
        self._starts = (block.starts[0] + sum(sizes) - num_failed_bytes, block.starts[1] + num_failed_bytes)
        for column in (self._numbers, self._sizes, self._ids):
            del column[:num_lines]


class NotAnIndexError(ValueError):
    """The bytes are not an index, or one of another format."""


class LineIndex:
    """The directory of an index: its blocks, which are read apart."""

    def __init__(self, kinds: Sequence[Kind], blocks: Sequence[Block]) -> None:
        self.kinds = kinds
        self.blocks = blocks
        self._first_lines = [block.first_line for block in blocks]

    @classmethod
    def parse(cls, directory: bytes) -> LineIndex:
        """Return an index from the bytes of its directory. Raises NotAnIndexError."""
        try:
            parsed = orjson.loads(directory)
            kinds = [Kind(*each) for each in parsed["kinds"]]
            blocks = [
                Block(first_line=first, num_lines=num, start=start, starts=(output, errors), counts=dict(counts))
                for first, num, start, output, errors, counts in parsed["blocks"]
            ]
            _check(blocks, num_kinds=len(kinds))
        except (KeyError, TypeError, ValueError) as error:  # orjson's error is a ValueError
            raise NotAnIndexError(f"its directory is broken: {error}") from error
        return cls(kinds, blocks)

    @property
    def size(self) -> int:
        """Bytes of the blocks, which are before the directory."""
        return self.blocks[-1].end if self.blocks else 0

    def blocks_from(self, line_no: int) -> Iterator[Block]:
        """Yield the block that may have a line, and those after it."""
        first = max(0, bisect_right(self._first_lines, line_no) - 1)
        yield from self.blocks[first:]

    def lines_of(self, block: Block, content: bytes) -> BlockLines:
        """Return the lines of a block from its bytes in the index. Raises NotAnIndexError."""
        num = block.num_lines
        if len(content) != BYTES_A_LINE * num:
            raise NotAnIndexError(f"a block has {len(content)} bytes instead of {BYTES_A_LINE * num}")
        columns = struct.unpack(f"<{num}I{num}I{num}H", content)
        numbers, sizes, ids = columns[:num], columns[num : 2 * num], columns[2 * num :]
        if Counter(ids) != block.counts:
            raise NotAnIndexError("the kinds of a block's lines are not those that it counts")
        errors = {number for number in block.counts if self.kinds[number].is_error}
        in_errors = [number in errors for number in ids] if errors else [False] * num
        files = [
            accumulate(compress(sizes, [each is is_error for each in in_errors]), initial=block.starts[is_error])
            for is_error in (False, True)
        ]
        starts = [next(files[is_error]) for is_error in in_errors]
        return BlockLines(self.kinds, numbers, sizes, ids, in_errors, starts)


def _check(blocks: Sequence[Block], *, num_kinds: int) -> None:
    """Raise ValueError where the blocks are not one after the other, or have other kinds than the index."""
    end = 0
    for block in blocks:
        are_numbers = all(type(each) is int for each in (block.first_line, *block.starts, *block.counts))
        are_known = are_numbers and all(0 <= kind < num_kinds for kind in block.counts)
        if block.start != end or not are_known or sum(block.counts.values()) != block.num_lines or block.num_lines < 1:
            raise ValueError(f"the block at byte {block.start}")
        end = block.end


@dataclass(frozen=True, slots=True)
class BlockLines(Sequence[IndexedLine]):
    """The lines of a block as columns: those that are wanted are made of them, a fraction of the time for all."""

    kinds: Sequence[Kind]
    numbers: Sequence[int]
    sizes: Sequence[int]
    ids: Sequence[int]
    in_errors: Sequence[bool]
    starts: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, position: int) -> IndexedLine: ...
    @overload
    def __getitem__(self, position: slice) -> list[IndexedLine]: ...
    def __getitem__(self, position: int | slice) -> IndexedLine | list[IndexedLine]:
        if isinstance(position, slice):
            return [self[each] for each in range(*position.indices(len(self)))]
        kind = self.kinds[self.ids[position]]
        return IndexedLine(self.numbers[position], kind, self.starts[position], self.sizes[position])

    def of_kinds(self, ids: Container[int], *, first_line: int) -> Iterator[IndexedLine]:
        """Yield the lines of some kinds from a line number on."""
        start = bisect_left(self.numbers, first_line)
        return (self[position] for position in range(start, len(self)) if self.ids[position] in ids)

    def of_file(self, *, is_error: bool) -> list[int]:
        """Return the positions of the lines of one file."""
        return [position for position, each in enumerate(self.in_errors) if each is is_error]


def directory_size(tail: bytes) -> int:
    """Return the size of the directory from the last bytes of an index. Raises NotAnIndexError."""
    if len(tail) != TAIL.size:
        raise NotAnIndexError("too short")
    size, form = TAIL.unpack(tail)
    if form != _FORMAT:
        raise NotAnIndexError(f"format {form!r}")
    assert isinstance(size, int)
    return size
