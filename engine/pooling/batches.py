"""Group texts into batches by length, under a budget of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def batches(lengths: Sequence[int], *, max_tokens: int) -> Iterator[list[int]]:
    """Yield indexes of texts, longest first, so that no batch exceeds `max_tokens`; a longer text is alone.

    The longest come first so that a batch that does not fit in memory fails at the beginning. Texts of one length keep
    their order and follow each other.
    """
    batch: list[int] = []
    used = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and used + lengths[index] > max_tokens:
            yield batch
            batch, used = [], 0
        batch.append(index)
        used += lengths[index]
    if batch:
        yield batch
