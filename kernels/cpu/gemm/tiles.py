"""One panel by AMX tiles, 32 or 16 rows × 48 columns at a time.

Panels already have the layout of a tile of W, adjacent pairs of k for 16 columns: one packing serves all units. A row's
sums are in the same order whatever the number of rows.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.gemm.panels import PANEL_COLUMNS
from kernels.cpu.gemm.rounded import SUMS_BYTES, RowsOut
from kernels.cpu.runtime import amx
from kernels.cpu.runtime import vectors as v
from kernels.cpu.runtime.amx import NUM_TILES, TILE_BYTES, TILE_DEPTH, TILE_ROWS, Tiles, as_bytes, room
from kernels.cpu.runtime.memory import bfloat16_at, float32_at, jit

MAX_ROWS = 2 * TILE_ROWS
_COLUMN_TILES = PANEL_COLUMNS // v.LANES
_STEP_LINES = TILE_DEPTH // 2 * _COLUMN_TILES  # of a panel, per step of k
_WEIGHT_AHEAD = 2  # steps of k; 1 to 4 took the same time (kernels/README.md)
_PANEL_BYTES = 4 * PANEL_COLUMNS  # for a pair of k in a panel


def is_there() -> bool:
    """Tell whether this process may use this unit."""
    return amx.can_use()


@jit
def multiply_panel(matrix: Any, rows: int, panel: Any, depth: int, columns: int) -> None:
    """Multiply any number of rows with one panel, of which the first `columns` columns are stored.

    `matrix` is (x, x_stride, out, out_stride, out_bytes) and `panel` (weight, bias): addresses, strides in elements.
    """
    x, x_stride, out, out_stride, out_bytes = matrix
    _multiply_rows(
        rows, bfloat16_at(x), x_stride, bfloat16_at(panel[0]), float32_at(panel[1]), out, out_stride, out_bytes,
        depth, columns,
    )  # fmt: skip


@intrinsic
def _multiply_rows(  # noqa: PLR0917  compiled
    typing_context: Any, rows: Any, x: Any, x_stride: Any, weight: Any, bias: Any, out: Any, out_stride: Any,
    out_bytes: Any, depth: Any, columns: Any,
) -> Any:  # fmt: skip
    """Multiply any number of rows with a panel, of which the first `columns` are stored. Strides count elements."""
    half, single, word = types.CPointer(types.uint16), types.CPointer(types.float32), types.int64
    signature = types.void(word, half, word, half, single, word, word, word, word, word)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, *others = arguments
        whole = builder.and_(rows, v.I64(-2 * TILE_ROWS))
        _PanelCode(builder, others, 2).write(v.I64(0), whole)
        _PanelCode(builder, others, 1).write(whole, rows)
        return context.get_dummy_value()

    return signature, generate


class _PanelCode:
    """Generate the code for one tile with any number of rows at a time, or for two full ones.

    Sums take the first tiles; then one of x, and one of W (three for a single tile of rows, to load ahead).
    """

    def __init__(self, builder: Any, arguments: Any, row_tiles: int) -> None:
        self._builder, self._row_tiles = builder, row_tiles
        self._x, x_stride, self._weight, self._bias, out, out_stride, out_bytes, self._depth, columns = arguments
        self._x_bytes = builder.shl(x_stride, v.I64(1))
        self._tiles = Tiles(builder)
        self._sums = [[tile * _COLUMN_TILES + column for column in range(_COLUMN_TILES)] for tile in range(row_tiles)]
        self._x_tile = row_tiles * _COLUMN_TILES
        self._weight_tiles = [self._x_tile + 1 + (column if row_tiles == 1 else 0) for column in range(_COLUMN_TILES)]
        self._target = RowsOut(builder, out, out_stride, out_bytes, columns, rows=row_tiles * TILE_ROWS)

    def write(self, first: Any, end: Any) -> None:
        """Generate the loop over the rows from `first` to `end`."""
        builder, height = self._builder, v.I64(self._row_tiles * TILE_ROWS)
        with builder.if_then(builder.icmp_signed("<", first, end)):
            self._configure(v.lower(builder, builder.sub(end, first), v.I64(TILE_ROWS)))
            with cgutils.for_range_slice(builder, first, end, height, inc=True) as (row, _):
                rows = v.lower(builder, builder.sub(end, row), height)
                if self._row_tiles == 1:
                    with builder.if_then(builder.icmp_signed(">", row, first), likely=False):
                        self._configure(rows)
                x = builder.gep(as_bytes(builder, self._x), [builder.mul(row, self._x_bytes)])
                self._write_block(builder.bitcast(x, self._x.type), row, rows)
            self._tiles.release()

    def _configure(self, rows: Any) -> None:
        heights = [v.I64(TILE_ROWS) if tile >= min(self._weight_tiles) else rows for tile in range(NUM_TILES)]
        self._tiles.configure([(height, TILE_BYTES) for height in heights])

    def _write_block(self, x: Any, row: Any, rows: Any) -> None:
        builder = self._builder
        for tiles in self._sums:
            for column, tile in enumerate(tiles):
                self._tiles.load(tile, builder.gep(self._bias, [v.I64(column * v.LANES)]), v.I64(0))
        steps = builder.udiv(self._depth, v.I64(TILE_DEPTH))
        with cgutils.for_range(builder, steps) as loop:
            at = builder.mul(loop.index, v.I64(TILE_DEPTH))
            weight = builder.gep(self._weight, [builder.mul(at, v.I64(PANEL_COLUMNS))])
            self._prefetch(builder.gep(x, [at]), weight)
            self._add_products(builder.gep(x, [at]), self._x_bytes, weight)
        rest = builder.urem(self._depth, v.I64(TILE_DEPTH))
        with builder.if_then(builder.icmp_signed("!=", rest, v.I64(0)), likely=False):
            self._add_rest(x, rows, rest)
        self._store(row, rows)

    def _add_products(self, x: Any, x_bytes: Any, weight: Any) -> None:
        """Add 32 numbers of k. Of two tiles of rows, the loaded one goes first with the next columns."""
        builder = self._builder
        order, loaded = list(range(self._row_tiles)), None
        for column, weight_tile in enumerate(self._weight_tiles):
            at = builder.gep(weight, [v.I64(2 * column * v.LANES)])
            self._tiles.load(weight_tile, at, v.I64(_PANEL_BYTES))
            for tile in order:
                if tile != loaded:
                    below = builder.mul(x_bytes, v.I64(tile * TILE_ROWS))
                    self._tiles.load(self._x_tile, builder.gep(as_bytes(builder, x), [below]), x_bytes)
                self._tiles.add_products(self._sums[tile][column], self._x_tile, weight_tile)
                loaded = tile
            order.reverse()

    def _prefetch(self, x: Any, weight: Any) -> None:
        """Prefetch the lines of the next steps of k, for x only if it exceeds what stays cached by itself."""
        builder = self._builder
        for line in range(_WEIGHT_AHEAD * _STEP_LINES, (_WEIGHT_AHEAD + 1) * _STEP_LINES):
            v.prefetch(builder, weight, v.I64(line * v.PAIRED_LANES), is_nearest=True)
        if self._row_tiles > 1:
            row = builder.gep(as_bytes(builder, x), [v.I64(TILE_BYTES)])
            for _ in range(self._row_tiles * TILE_ROWS):
                v.prefetch(builder, row, v.I64(0), is_nearest=True)
                row = builder.gep(row, [self._x_bytes])

    def _add_rest(self, x: Any, rows: Any, rest: Any) -> None:
        """Add the last numbers of k, fewer than a tile has: copied among zeros, since other data follows them."""
        builder = self._builder
        x_size, weight_size = self._row_tiles * TILE_ROWS * TILE_BYTES, TILE_DEPTH // 2 * _PANEL_BYTES
        own_x, own_weight = room(builder, x_size), room(builder, weight_size)
        cgutils.memset(builder, own_x, v.I64(x_size), 0)
        cgutils.memset(builder, own_weight, v.I64(weight_size), 0)
        start = builder.sub(self._depth, rest)
        rest_of_x = as_bytes(builder, builder.gep(x, [start]))
        with cgutils.for_range(builder, rows) as loop:
            source = builder.gep(rest_of_x, [builder.mul(loop.index, self._x_bytes)])
            target = builder.gep(own_x, [builder.mul(loop.index, v.I64(TILE_BYTES))])
            self._copy(target, source, builder.shl(rest, v.I64(1)))
        pairs = builder.lshr(builder.add(rest, v.I64(1)), v.I64(1))
        source = as_bytes(builder, builder.gep(self._weight, [builder.mul(start, v.I64(PANEL_COLUMNS))]))
        self._copy(own_weight, source, builder.mul(pairs, v.I64(_PANEL_BYTES)))
        halves = v.I16.as_pointer()
        self._add_products(builder.bitcast(own_x, halves), v.I64(TILE_BYTES), builder.bitcast(own_weight, halves))

    def _store(self, first: Any, rows: Any) -> None:
        """Store the sums of the panel's existing columns, from row `first` of the result on."""
        for tile, row in enumerate(self._sums):
            for column, number in enumerate(row):
                place = self._target.sums_at(v.I64(tile * TILE_ROWS), column * v.LANES, v.FLOATS)
                self._tiles.store(number, place, v.I64(SUMS_BYTES))
        self._target.finish(first, rows, v.LANES, v.round_to_bfloat16)

    def _copy(self, target: Any, source: Any, size: Any) -> None:
        cgutils.raw_memcpy(self._builder, target, source, size, v.I64(1), align=1)
