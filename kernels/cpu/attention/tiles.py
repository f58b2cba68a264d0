"""The products of attention by AMX, for 1 to 16 query rows that share keys, over the same rounds as products.py.

A group of 16 keys or values already has the layout of a tile: adjacent pairs of dimensions for 16 keys, adjacent pairs
of values for 16 dimensions. The queries and shares are bf16, and a head's dimensions a multiple of 16. A row sums in
the same order whatever the number and content of the other rows.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.attention.products import ROUND_KEYS
from kernels.cpu.runtime import vectors as v
from kernels.cpu.runtime.amx import TILE_BYTES, TILE_DEPTH, TILE_ROWS, Tiles, as_bytes, room
from kernels.cpu.runtime.memory import jit

DIM_STEP = 16  # a head's dimensions must be a multiple of it
_SUMS = 4  # tiles 0 to 3; then one of queries and one of keys, with 32 dimensions; then the same with half as many
_WIDE, _HALF = (4, 5), (6, 7)
_HALF_DEPTH = TILE_DEPTH // 2
_LINE = 64

_bfloat16, _float32 = types.CPointer(types.uint16), types.CPointer(types.float32)
_offsets, _word = types.CPointer(types.int64), types.int64


@jit
def keep(shape: Any, rows: int) -> None:
    """Give the thread's tiles the shapes for so many rows, unless shape[0] says that they have them; 0 leaves them."""
    if rows == shape[0]:
        return
    if rows == 0:
        _release()
    else:
        _configure(rows)
    shape[0] = rows


@intrinsic
def _configure(typing_context: Any, rows: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (rows,) = arguments
        wide, half = (rows, TILE_BYTES), (rows, TILE_BYTES // 2)
        keys, values = (v.I64(TILE_ROWS), TILE_BYTES), (v.I64(TILE_ROWS // 2), TILE_BYTES)
        Tiles(builder).configure([wide] * _SUMS + [wide, keys, half, values])
        return context.get_dummy_value()

    return types.void(_word), generate


@intrinsic
def _release(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        Tiles(builder).release()
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def score_keys(  # noqa: PLR0917  compiled
    typing_context: Any, rows: Any, query: Any, stride: Any, keys: Any, offsets: Any, ahead: Any, first: Any, end: Any,
    dim: Any, scores: Any,
) -> Any:  # fmt: skip
    """Write the products of the rows with the keys of groups [first, end) to scores[row * 128 + key]; or of more."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _Scores(builder, arguments[1:]).emit()
        return context.get_dummy_value()

    kind = types.void(_word, _bfloat16, _word, _bfloat16, _offsets, _offsets, _word, _word, _word, _float32)
    return kind, generate


class _Scores:
    """Generate the code of `score_keys`: four groups at a time, a tile of sums for each."""

    def __init__(self, builder: Any, arguments: Any) -> None:
        self._builder, self._tiles = builder, Tiles(builder)
        self._query, stride, self._keys, self._offsets, self._ahead = arguments[:5]
        self._first, self._end, self._dim, self._scores = arguments[5:]
        self._query_bytes = builder.shl(stride, v.I64(1))

    def emit(self) -> None:
        builder = self._builder
        start = builder.and_(self._first, v.I64(-_SUMS))
        with cgutils.for_range_slice(builder, start, self._end, v.I64(_SUMS), inc=True) as (first, _):
            groups = [builder.add(first, v.I64(group)) for group in range(_SUMS)]
            for tile in range(_SUMS):
                self._tiles.clear(tile)
            whole = builder.and_(self._dim, v.I64(-TILE_DEPTH))
            with cgutils.for_range_slice(builder, v.I64(0), whole, v.I64(TILE_DEPTH), inc=True) as (d, _):
                self._add(groups, d, _WIDE, TILE_ROWS)
            with builder.if_then(builder.icmp_signed("<", whole, self._dim)):
                self._add(groups, whole, _HALF, TILE_ROWS // 2)
            for tile, group in enumerate(groups):
                target = builder.gep(self._scores, [builder.mul(group, v.I64(v.LANES))])
                self._tiles.store(tile, target, v.I64(4 * ROUND_KEYS))

    def _add(self, groups: Any, d: Any, tiles: tuple[int, int], lines: int) -> None:
        """Add the products of the dimensions from d on, two per line of a group."""
        builder, (query_tile, key_tile) = self._builder, tiles
        self._tiles.load(query_tile, builder.gep(self._query, [d]), self._query_bytes)
        within = builder.mul(d, v.I64(v.LANES))
        for tile, group in enumerate(groups):
            at = builder.add(builder.load(builder.gep(self._offsets, [group])), within)
            self._tiles.load(key_tile, builder.gep(self._keys, [at]), v.I64(_LINE))
            self._tiles.add_products(tile, query_tile, key_tile)
            _prefetch(builder, self._keys, builder.add(builder.load(builder.gep(self._ahead, [group])), within), lines)


@intrinsic
def add_values(  # noqa: PLR0917  compiled
    typing_context: Any, rows: Any, shares: Any, values: Any, offsets: Any, ahead: Any, first: Any, end: Any, sums: Any,
    stride: Any, factors: Any, dim: Any,
) -> Any:  # fmt: skip
    """Set sums[row * stride + d] to itself · factors[row] + Σ shares[row * 128 + n] · value n at d, n in [first, end).

    What is no key of [first, end) is not looked at; shares of those in the groups of `first` and `end` may be anything
    finite.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _Sums(builder, arguments).emit()
        return context.get_dummy_value()

    kind = types.void(_word, _bfloat16, _bfloat16, _offsets, _offsets, _word, _word, _float32, _word, _float32, _word)
    return kind, generate


class _Sums:
    """Generate the code of `add_values`: 64 dimensions at a time stay in tiles over all keys of the round."""

    def __init__(self, builder: Any, arguments: Any) -> None:
        self._builder, self._tiles = builder, Tiles(builder)
        self._rows, self._shares, self._values, self._offsets, self._ahead, self._first, self._end = arguments[:7]
        self._sums, self._stride, self._factors, self._dim = arguments[7:]
        self._sum_bytes = builder.shl(self._stride, v.I64(2))
        self._line_bytes = builder.shl(self._dim, v.I64(2))  # for a pair of values
        self._copy = room(builder, _HALF_DEPTH // 2 * _SUMS * TILE_BYTES)

    def emit(self) -> None:
        builder = self._builder
        self._shrink()
        chunk = _SUMS * v.LANES
        whole = builder.and_(self._dim, v.I64(-chunk))
        with cgutils.for_range_slice(builder, v.I64(0), whole, v.I64(chunk), inc=True) as (d, _):
            self._add_columns(d, _SUMS)
        with cgutils.for_range_slice(builder, whole, self._dim, v.I64(v.LANES), inc=True) as (d, _):
            self._add_columns(d, 1)

    def _shrink(self) -> None:
        """Multiply each row's sums by its factor."""
        builder = self._builder
        with cgutils.for_range(builder, self._rows) as loop:
            factor = v.spread(builder, builder.load(builder.gep(self._factors, [loop.index])))
            row = builder.gep(self._sums, [builder.mul(loop.index, self._stride)])
            with cgutils.for_range_slice(builder, v.I64(0), self._dim, v.I64(v.LANES), inc=True) as (d, _):
                v.store_floats(builder, builder.fmul(v.load_vector(builder, row, d, v.FLOATS), factor), row, d)

    def _add_columns(self, d: Any, vectors: int) -> None:
        """Add to `vectors` × 16 dimensions from d on."""
        builder, lanes = self._builder, v.I64(v.LANES)
        places = [builder.gep(self._sums, [builder.add(d, v.I64(n * v.LANES))]) for n in range(vectors)]
        for tile, place in enumerate(places):
            self._tiles.load(tile, place, self._sum_bytes)
        begin = builder.sdiv(self._first, lanes)
        end = builder.sdiv(builder.add(self._end, v.I64(v.LANES - 1)), lanes)
        with cgutils.for_range_slice(builder, begin, end, v.I64(1), inc=True) as (group, _):
            self._add_group(group, builder.shl(d, v.I64(1)), vectors)
        for tile, place in enumerate(places):
            self._tiles.store(tile, place, self._sum_bytes)

    def _add_group(self, group: Any, within: Any, vectors: int) -> None:
        builder, (share_tile, _) = self._builder, _HALF
        start = builder.mul(group, v.I64(v.LANES))
        self._tiles.load(share_tile, builder.gep(self._shares, [start]), v.I64(2 * ROUND_KEYS))
        low, high = builder.sub(self._first, start), builder.sub(self._end, start)
        is_cut = builder.or_(builder.icmp_signed(">", low, v.I64(0)), builder.icmp_signed("<", high, v.I64(v.LANES)))
        at = builder.add(builder.load(builder.gep(self._offsets, [group])), within)
        source = as_bytes(builder, builder.gep(self._values, [at]))
        ahead = builder.add(builder.load(builder.gep(self._ahead, [group])), within)
        with builder.if_else(is_cut, likely=False) as (cut, whole):
            with cut:
                self._copy_seen(source, low, high, vectors)
                self._add_lines(self._copy, v.I64(vectors * TILE_BYTES), vectors, None)
            with whole:
                self._add_lines(source, self._line_bytes, vectors, ahead)

    def _add_lines(self, source: Any, stride: Any, vectors: int, ahead: Any) -> None:
        builder, (share_tile, value_tile) = self._builder, _HALF
        for tile in range(vectors):
            self._tiles.load(value_tile, builder.gep(source, [v.I64(tile * TILE_BYTES)]), stride)
            self._tiles.add_products(tile, share_tile, value_tile)
        if ahead is not None:
            for pair in range(_HALF_DEPTH // 2):
                line = builder.add(ahead, builder.mul(v.I64(2 * pair), self._dim))
                _prefetch(builder, self._values, line, vectors)

    def _copy_seen(self, source: Any, low: Any, high: Any, vectors: int) -> None:
        """Copy a group's values [low, high) of 16 and zeros for the others."""
        builder = self._builder
        for pair in range(_HALF_DEPTH // 2):
            mask = v.I32(0)
            for half in range(2):
                index = v.I64(2 * pair + half)
                is_seen = builder.and_(builder.icmp_signed(">=", index, low), builder.icmp_signed("<", index, high))
                mask = builder.or_(mask, builder.select(is_seen, v.I32(0xFFFF << 16 * half), v.I32(0)))
            seen = v.spread(builder, mask, v.WORDS)
            line = builder.gep(source, [builder.mul(v.I64(pair), self._line_bytes)])
            line = builder.bitcast(line, v.I32.as_pointer())
            target = builder.gep(self._copy, [v.I64(pair * vectors * TILE_BYTES)])
            target = builder.bitcast(target, v.WORDS.as_pointer())
            for vector in range(vectors):
                words = v.load_vector(builder, line, v.I64(vector * v.LANES), v.WORDS)
                builder.store(builder.and_(words, seen), builder.gep(target, [v.I64(vector)]), align=4)


def _prefetch(builder: Any, pointer: Any, start: Any, lines: int) -> None:
    """Prefetch this many cache lines of bf16 from an element on."""
    for line in range(lines):
        v.prefetch(builder, pointer, builder.add(start, v.I64(line * _LINE // 2)))
