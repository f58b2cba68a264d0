"""Compute batches in parallel, each on a thread of its own.

Batches are independent, but threads that share one batch would wait for each other at every product of every layer, all
the more if other work occupies a core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Batch = TypeVar("Batch")


def compute_each(compute: Callable[[Batch], None], batches: Sequence[Batch]) -> None:
    """Call `compute` with every batch, as many at once as torch has threads; the first error is raised."""
    num_threads = torch.get_num_threads()
    if num_threads == 1 or len(batches) < 2:
        for batch in batches:
            compute(batch)
        return
    with (
        _one_thread_each(num_threads),
        ThreadPoolExecutor(min(num_threads, len(batches)), initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        for _ in pool.map(compute, batches):
            pass


@contextmanager
def _one_thread_each(num_threads: int) -> Iterator[None]:
    """Limit products to one thread: part of torch's setting is per thread, part per process."""
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
