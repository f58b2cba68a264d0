"""Lines of a batch that has ended: read from its output and error files by their index."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, zip_longest

from features.lines.making import write_index
from features.lines.reader import MAX_LINE_BYTES, MAX_SHOWN_BYTES, FoundLine, LineFilter, LinesPage, SearchedPart
from jobs.errors import NotFoundError, ServiceError
from jobs.files import line_index_key
from jobs.lines.line_index import TAIL, Block, BlockLines, IndexedLine, LineIndex, NotAnIndexError, directory_size
from jobs.storage import Storage

_TAIL_BYTES = 64 * 1024
"""Bytes of an index that are read first, from its end: the whole directory of a million lines."""
_GAP_BYTES = 64 * 1024
_MOST_BLOCKS = 16
"""Blocks of an index that are read at once; fewer at first, as a page is usually in one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """An output or error file in the store."""

    object_key: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFiles:
    """The files of a batch that has ended; None: no line is in it."""

    batch_id: str
    output: ResultFile | None
    errors: ResultFile | None

    @property
    def index_key(self) -> str | None:
        first = self.output or self.errors
        return None if first is None else line_index_key(first.object_key)

    def of(self, *, is_error: bool) -> ResultFile:
        """Return the file of a line."""
        file = self.errors if is_error else self.output
        assert file is not None, "it has the line"
        return file


class StoredLines:
    """Reads lines from the object store. `load` or `make_index` comes first."""

    needs_database = False

    def __init__(self, storage: Storage, files: ResultFiles) -> None:
        self._storage = storage
        self._files = files
        self._index = LineIndex([], [])

    def load(self) -> bool:
        """Read the index; return whether there is one."""
        key = self._files.index_key
        if key is None:
            return True
        with suppress(NotFoundError, NotAnIndexError):
            self._index = self._parsed(key)
            return True
        return False

    def make_index(self) -> None:
        """Write the index that a batch of an earlier release lacks, or that was lost; it takes as long as a search."""
        key, files = self._files.index_key, self._files
        assert key is not None
        with self._whole(), self._storage.writer(key) as writer:
            sources = [None if each is None else each.object_key for each in (files.output, files.errors)]
            write_index(self._storage, writer.write, files.batch_id, output_key=sources[0], errors_key=sources[1])
        with self._whole():
            self._index = self._parsed(key)

    def page(self, wanted: LineFilter, *, first_line: int, limit: int) -> LinesPage:
        """Return the next `limit` wanted lines from a line number on."""
        found = list(islice(self._indexed(wanted, first_line), limit + 1))
        has_more = len(found) > limit
        lines = self._read(found[:limit], most=MAX_SHOWN_BYTES)
        next_line = lines[-1].line_no + 1 if lines else first_line
        return LinesPage(lines=lines, next_line=next_line, has_more=has_more)

    def find(self, line_no: int) -> FoundLine | None:
        """Return one line, or None where it has no result."""
        for lines in self._lines_of(list(islice(self._index.blocks_from(line_no), 1))):
            position = bisect_left(lines.numbers, line_no)
            if position < len(lines) and lines.numbers[position] == line_no:
                return self._read([lines[position]], most=MAX_LINE_BYTES)[0]
        return None

    def search(self, needle: bytes, wanted: LineFilter, *, first_line: int) -> Iterator[SearchedPart]:
        """Yield the wanted lines whose bytes contain `needle`, block by block, from a line number on."""
        blocks = list(self._index.blocks_from(first_line))
        file_ends = (self._size(is_error=False), self._size(is_error=True))
        for block, following in zip_longest(blocks, blocks[1:]):
            ends = file_ends if following is None else following.starts
            next_line = block.first_line + block.num_lines if following is None else following.first_line
            found, num_bytes = list[FoundLine](), 0
            if self._may_have(block, wanted):
                found, num_bytes = self._containing(block, needle, wanted, ends=ends)
            lines = [line for line in found if line.line_no >= first_line]
            yield SearchedPart(lines=lines, next_line=max(next_line, first_line), num_bytes=num_bytes)

    # --- the index ---------------------------------------------------------------------------------------------------

    def _parsed(self, key: str) -> LineIndex:
        size = self._storage.size(key)
        end = self._storage.read_range(key, max(0, size - _TAIL_BYTES), size)
        needed = directory_size(end[-TAIL.size :]) + TAIL.size
        if needed > size:
            raise NotAnIndexError(f"{size} bytes, of {needed}")
        if needed > len(end):
            end = self._storage.read_range(key, size - needed, size)
        index = LineIndex.parse(end[-needed : -TAIL.size])
        if index.size != size - needed:
            raise NotAnIndexError(f"blocks of {size - needed} bytes instead of {index.size}")
        return index

    def _may_have(self, block: Block, wanted: LineFilter) -> bool:
        return any(wanted.takes(self._index.kinds[kind]) for kind in block.counts)

    def _indexed(self, wanted: LineFilter, first_line: int) -> Iterator[IndexedLine]:
        blocks = (block for block in self._index.blocks_from(first_line) if self._may_have(block, wanted))
        kinds = {number for number, kind in enumerate(self._index.kinds) if wanted.takes(kind)}
        num_at_once = 1
        while some := list(islice(blocks, num_at_once)):
            for lines in self._lines_of(some):
                yield from lines.of_kinds(kinds, first_line=first_line)
            num_at_once = min(2 * num_at_once, _MOST_BLOCKS)

    def _lines_of(self, blocks: Sequence[Block]) -> Iterator[BlockLines]:
        key = self._files.index_key
        if key is None:
            return
        with self._whole():
            contents = self._storage.read_ranges(key, [(block.start, block.end) for block in blocks])
        for block, content in zip(blocks, contents, strict=True):
            try:
                lines = self._index.lines_of(block, content)
            except NotAnIndexError as error:
                self._storage.delete(key)  # the next request makes it again
                raise ServiceError(f"the index of batch {self._files.batch_id} is broken: {error}") from error
            yield lines

    # --- the files ---------------------------------------------------------------------------------------------------

    def _size(self, *, is_error: bool) -> int:
        file = self._files.errors if is_error else self._files.output
        return 0 if file is None else file.size_bytes

    def _read(self, lines: Sequence[IndexedLine], *, most: int) -> list[FoundLine]:
        """Return lines with at most this many bytes of each."""
        contents: dict[int, bytes] = {}
        for is_error in (False, True):
            of_file = [line for line in lines if line.kind.is_error is is_error]
            if of_file:
                ranges = [(line.start, line.start + min(line.size - 1, most)) for line in of_file]
                with self._whole():
                    parts = self._storage.read_ranges(
                        self._files.of(is_error=is_error).object_key, ranges, gap_bytes=_GAP_BYTES
                    )
                contents |= {line.line_no: part for line, part in zip(of_file, parts, strict=True)}
        return [
            FoundLine(line_no=line.line_no, kind=line.kind, size=line.size - 1, content=contents[line.line_no])
            for line in lines
        ]

    def _containing(
        self, block: Block, needle: bytes, wanted: LineFilter, *, ends: tuple[int, int]
    ) -> tuple[list[FoundLine], int]:
        """Return the wanted lines of a block that contain `needle`, and how many bytes were searched."""
        found: list[FoundLine] = []
        num_bytes = 0
        lines: BlockLines | None = None
        for is_error in (False, True):
            start, end = block.starts[is_error], ends[is_error]
            if start == end or wanted.is_error not in (None, is_error):
                continue
            with self._whole():
                content = self._storage.read_whole_range(self._files.of(is_error=is_error).object_key, start, end)
            num_bytes += len(content)
            if needle in content:
                lines = lines or next(self._lines_of([block]))
                found += _containing(lines, content, needle, start=start, is_error=is_error)
        return sorted((line for line in found if wanted.takes(line.kind)), key=lambda line: line.line_no), num_bytes

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Raise ServiceError where the store, which is there, has lost an object."""
        try:
            yield
        except NotFoundError as error:
            raise ServiceError(f"batch {self._files.batch_id} has lost a result file or its index: {error}") from error


def _containing(lines: BlockLines, content: bytes, needle: bytes, *, start: int, is_error: bool) -> Iterator[FoundLine]:
    """Yield the lines of a file that contain `needle`; `content` are their bytes, from `start` of the file on."""
    positions = lines.of_file(is_error=is_error)
    starts = [lines.starts[position] - start for position in positions]
    place = content.find(needle)
    while place >= 0:
        number = bisect_right(starts, place) - 1
        line = lines[positions[number]]
        end = starts[number] + line.size
        if place + len(needle) < end:
            text = content[starts[number] : end - 1]
            yield FoundLine(line_no=line.line_no, kind=line.kind, size=line.size - 1, content=text)
        place = content.find(needle, end)
