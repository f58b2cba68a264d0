"""The products of attention for 1 to 4 query rows that share keys: scores of keys, and sums of values by their shares.

A round is up to 128 keys in groups of 16, in the layout of kv_layout.py, each group at its own offset (elements) from
the start of the cache, so this file does not depend on blocks or positions. Queries and shares in bf16 mean bf16 dot
products (AVX512-BF16); float32 means plain fused multiply-adds, with a bf16 cache widened in registers. A row sums in
the same order whatever the other rows hold. `ahead` holds the offsets of the next round: its cache lines are
prefetched while this one is computed, since blocks are scattered.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.runtime import vectors as v

ROUND_KEYS = 128
MAX_ROWS = 4
_ONE = ir.Constant(ir.FloatType(), 1.0)

_float32, _offsets, _word = types.CPointer(types.float32), types.CPointer(types.int64), types.int64


def _wide(rows: int) -> int:
    """Return how many vectors of sums fit in registers for this many rows: AVX-512 has 32 registers, AVX2 16 halves."""
    return max(4, 8 // rows) if v.has_feature("avx512f") else 4 // rows


def _narrowest() -> int:
    """Return the fewest vectors that need code of their own; AVX-512 loads some lanes of one as quickly as all."""
    return 2 if v.has_feature("avx512f") else 1


class _Products:
    """Generate code that adds products to sums in registers, total[row][n] += vector[n] · number[row], a pair at once.

    A vector has 16 lanes of one number, or of two neighbours in a bf16 cache, and so does its factor.
    """

    def __init__(self, builder: Any, rows: int, cached: Any, is_dot: bool, is_bfloat16: bool) -> None:
        self.builder, self.rows, self.cached = builder, rows, cached
        self.is_dot, self.is_bfloat16 = is_dot, is_bfloat16
        self.pair = 2 if is_bfloat16 else 1
        self.step = self.pair * v.LANES  # elements of one vector, which are a cache line

    def sums(self, vectors: int) -> list[list[Any]]:
        """Return storage for `vectors` sums of each row."""
        return [[cgutils.alloca_once(self.builder, v.FLOATS) for _ in range(vectors)] for _ in range(self.rows)]

    def add(
        self, totals: Any, vectors: Any, numbers: Any, *, width: Any = None, halves: tuple[int, ...] = (0, 1)
    ) -> None:
        """Add the products of vectors at element offsets of the cache with numbers at addresses, one for each row.

        With `width`, only this many lanes are read. `halves` selects the neighbours that count; the other may be NaN.
        """
        loaded = [self._lanes(vector, width, halves) for vector in vectors]
        for sums, number in zip(totals, numbers, strict=True):
            for half, factor in self._spread(number, halves):
                for total, lanes in zip(sums, loaded, strict=True):
                    add = v.dot_pairs if self.is_dot else v.multiply_add
                    self.builder.store(add(self.builder, lanes[half], factor, self.builder.load(total)), total)

    def _lanes(self, index: Any, width: Any, halves: tuple[int, ...]) -> Any:
        """Load one vector: whole for dot products, else widened, by the neighbour that it holds."""
        builder = self.builder
        if not self.is_bfloat16:
            return [v.load_vector(builder, self.cached, index, v.FLOATS, width)]
        width = None if width is None else builder.shl(width, v.I64(1))
        words = builder.bitcast(v.load_vector(builder, self.cached, index, v.PAIRS, width), v.WORDS)
        if self.is_dot:
            return [builder.bitcast(v.keep_halves(builder, words, halves), v.PAIRS)]
        return [v.widen_half(builder, words, half) for half in (0, 1)]

    def _spread(self, number: Any, halves: tuple[int, ...]) -> list[tuple[int, Any]]:
        """Return the vectors to multiply with, each with the half of a cached vector that it belongs to."""
        builder = self.builder
        if self.is_dot:
            word = builder.load(builder.bitcast(number, v.I32.as_pointer()), align=2)
            return [(0, builder.bitcast(v.spread(builder, word, v.WORDS), v.PAIRS))]
        numbers = [builder.gep(number, [v.I64(half)]) for half in range(self.pair)]
        return [(half, v.spread(builder, builder.load(at))) for half, at in enumerate(numbers) if half in halves]

    def prefetch(self, start: Any, vectors: int) -> None:
        """Prefetch the lines of this many vectors from an element of the cache on."""
        for vector in range(vectors):
            v.prefetch(self.builder, self.cached, self.builder.add(start, v.I64(self.step * vector)))


@intrinsic
def score_keys(  # noqa: PLR0917  compiled
    typing_context: Any,
    rows: Any,
    query: Any,
    stride: Any,
    keys: Any,
    offsets: Any,
    ahead: Any,
    first: Any,
    end: Any,
    dim: Any,
    scores: Any,
) -> Any:
    """Write the products of 1 to 4 queries with the keys of groups [first, end) to scores[row * 128 + key].

    More may be computed, so all 8 offsets must be there. `query` holds rows of `stride` elements, of which an odd `dim`
    needs one more, zero, where the cache is bf16.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        is_dot, is_bfloat16 = query.dtype == types.uint16, keys.dtype == types.uint16
        for number in range(1, MAX_ROWS + 1):
            with builder.if_then(builder.icmp_signed("==", arguments[0], v.I64(number))):
                _Scores(builder, arguments[1:], number, is_dot, is_bfloat16).emit()
        return context.get_dummy_value()

    kind = types.void(_word, query, _word, keys, _offsets, _offsets, _word, _word, _word, _float32)
    return kind, generate


class _Scores:
    """Generate the code of `score_keys`: a lane for each key, its sum of products in a register over all dimensions."""

    def __init__(self, builder: Any, arguments: Any, rows: int, is_dot: bool, is_bfloat16: bool) -> None:
        self.builder = builder
        self.query, self.stride, keys, self.offsets, self.ahead = arguments[:5]
        self.first, self.end, self.dim, self.scores = arguments[5:]
        self.products = _Products(builder, rows, keys, is_dot, is_bfloat16)

    def emit(self) -> None:
        builder, wide = self.builder, _wide(self.products.rows)
        start = builder.and_(self.first, v.I64(-wide))
        count = builder.sdiv(builder.add(builder.sub(self.end, start), v.I64(wide - 1)), v.I64(wide))
        totals = self.products.sums(wide)
        with cgutils.for_range(builder, count) as loop:
            self._score_groups(totals, builder.add(start, builder.mul(loop.index, v.I64(wide))))

    def _score_groups(self, totals: Any, first: Any) -> None:
        builder, pair = self.builder, self.products.pair
        groups = [builder.add(first, v.I64(group)) for group in range(len(totals[0]))]
        starts, ahead = (
            [builder.load(builder.gep(offsets, [group])) for group in groups] for offsets in (self.offsets, self.ahead)
        )
        for total in (total for sums in totals for total in sums):
            builder.store(v.zeros(), total)
        with cgutils.for_range(builder, builder.sdiv(builder.add(self.dim, v.I64(pair - 1)), v.I64(pair))) as loop:
            line, d = (builder.mul(loop.index, v.I64(step)) for step in (self.products.step, pair))
            rows = [builder.add(builder.mul(self.stride, v.I64(row)), d) for row in range(len(totals))]
            vectors, numbers = [builder.add(at, line) for at in starts], [builder.gep(self.query, [at]) for at in rows]
            self.products.add(totals, vectors, numbers)
            for at in ahead:
                self.products.prefetch(builder.add(at, line), 1)
        for row, sums in enumerate(totals):
            for group, total in zip(groups, sums, strict=True):
                offset = builder.add(builder.mul(group, v.I64(v.LANES)), v.I64(row * ROUND_KEYS))
                v.store_floats(builder, builder.load(total), self.scores, offset)


@intrinsic
def add_values(  # noqa: PLR0917  compiled
    typing_context: Any,
    rows: Any,
    shares: Any,
    values: Any,
    offsets: Any,
    ahead: Any,
    first: Any,
    end: Any,
    sums: Any,
    stride: Any,
    factors: Any,
    dim: Any,
) -> Any:
    """Set sums[row * stride + d] to itself · factors[row] + Σ shares[row * 128 + n] · value n at d, n in [first, end).

    For 1 to 4 rows and all d below `dim`; a row of sums has room for a multiple of 16. Next to an odd bound, the shares
    of bf16 must have a 0.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        is_dot, is_bfloat16 = shares.dtype == types.uint16, values.dtype == types.uint16
        for number in range(1, MAX_ROWS + 1):
            with builder.if_then(builder.icmp_signed("==", arguments[0], v.I64(number))):
                _Sums(builder, arguments[1:], number, is_dot, is_bfloat16).emit()
        return context.get_dummy_value()

    kind = types.void(_word, shares, values, _offsets, _offsets, _word, _word, _float32, _word, _float32, _word)
    return kind, generate


class _Sums:
    """Generate the code of `add_values`: as many sums as registers hold stay there over all keys of the round."""

    def __init__(self, builder: Any, arguments: Any, rows: int, is_dot: bool, is_bfloat16: bool) -> None:
        self.builder = builder
        self.shares, values, self.offsets, self.ahead, self.first, self.end = arguments[:6]
        self.sums, self.stride, self.factors, self.dim = arguments[6:]
        self.products = _Products(builder, rows, values, is_dot, is_bfloat16)

    def emit(self) -> None:
        """Add all pairs; before and after them, in separate passes, the single key of a pair that a bound cuts.

        A separate pass is little code: a case for each cut in every loop would lengthen compilation by a fifth.
        """
        builder, one = self.builder, v.I64(1)
        if self.products.pair == 1:
            self._add_whole(self.first, self.end)
            return
        with builder.if_then(builder.trunc(self.first, v.BIT)):
            self._add_half(1)
            for factor in self._factors():  # shrink the sums of earlier keys
                builder.store(_ONE, factor)
        self._add_whole(builder.lshr(builder.add(self.first, one), one), builder.lshr(self.end, one))
        with builder.if_then(builder.trunc(self.end, v.BIT)):
            self._add_half(0)

    def _add_whole(self, begin: Any, end: Any) -> None:
        """Add pairs [begin, end): to as many dimensions at a time as registers hold, half as many, …, then the rest."""
        builder, done, wide = self.builder, v.I64(0), _wide(self.products.rows)
        while wide >= _narrowest():
            step = wide * v.LANES
            stop = builder.and_(self.dim, v.I64(-step))
            with cgutils.for_range_slice(builder, done, stop, v.I64(step), inc=True) as (start, _):
                self._add_pairs(wide, start, None, (begin, end))
            done, wide = stop, wide // 2
        with cgutils.for_range_slice(builder, done, self.dim, v.I64(v.LANES), inc=True) as (start, _):
            self._add_pairs(1, start, builder.sub(self.dim, start), (begin, end))

    def _add_pairs(self, vectors: int, start: Any, width: Any, pairs: Any) -> None:
        """Sum `vectors` × 16 dimensions from `start` on; with `width`, only that many are read."""
        builder, totals = self.builder, self._totals(vectors, start, self._factors())
        with cgutils.for_range_slice(builder, *pairs, v.I64(1), inc=True) as (index, _):
            self._add_keys(totals, index, start, width, (0, 1) if self.products.pair == 2 else (0,))
        self._store(totals, start)

    def _add_half(self, half: int) -> None:
        """Add the second key (1) of the pair that the first bound cuts, or the first (0) of the last bound's."""
        builder, bound = self.builder, self.first if half else self.end
        index = builder.lshr(bound, v.I64(1))
        with cgutils.for_range_slice(builder, v.I64(0), self.dim, v.I64(v.LANES), inc=True) as (start, _):
            totals = self._totals(1, start, self._factors() if half else None)
            self._add_keys(totals, index, start, builder.sub(self.dim, start), (half,))
            self._store(totals, start)

    def _factors(self) -> list[Any]:
        return [self.builder.gep(self.factors, [v.I64(row)]) for row in range(self.products.rows)]

    def _totals(self, vectors: int, start: Any, factors: list[Any] | None) -> Any:
        """Load the sums of `vectors` × 16 dimensions into registers, each row's times its factor."""
        builder, totals = self.builder, self.products.sums(vectors)
        for row, sums in enumerate(totals):
            factor = None if factors is None else v.spread(builder, builder.load(factors[row]))
            for vector, total in enumerate(sums):
                old = v.load_vector(builder, self.sums, self._offset(row, vector, start), v.FLOATS)
                builder.store(old if factor is None else builder.fmul(old, factor), total)
        return totals

    def _store(self, totals: Any, start: Any) -> None:
        for row, sums in enumerate(totals):
            for vector, total in enumerate(sums):
                v.store_floats(self.builder, self.builder.load(total), self.sums, self._offset(row, vector, start))

    def _offset(self, row: int, vector: int, start: Any) -> Any:
        builder = self.builder
        return builder.add(builder.mul(self.stride, v.I64(row)), builder.add(start, v.I64(v.LANES * vector)))

    def _add_keys(self, totals: Any, index: Any, start: Any, width: Any, halves: tuple[int, ...]) -> None:
        """Add a key, or a pair of neighbours, by its index in the round."""
        builder, products = self.builder, self.products
        in_group = v.LANES // products.pair
        group = builder.lshr(index, v.I64(in_group.bit_length() - 1))
        inside = builder.and_(index, v.I64(in_group - 1))
        line = builder.mul(builder.add(start, builder.mul(inside, self.dim)), v.I64(products.pair))
        offset, ahead = (
            builder.add(builder.load(builder.gep(offsets, [group])), line) for offsets in (self.offsets, self.ahead)
        )
        key = builder.mul(index, v.I64(products.pair))
        numbers = [
            builder.gep(self.shares, [builder.add(key, v.I64(row * ROUND_KEYS))]) for row in range(products.rows)
        ]
        vectors = [builder.add(offset, v.I64(products.step * vector)) for vector in range(len(totals[0]))]
        products.add(totals, vectors, numbers, width=width, halves=halves)
        products.prefetch(ahead, len(vectors))
