"""Compute batches beside one another, each on a thread of its own. Knows nothing of what is computed.

Batches need nothing of one another, so threads that share one batch would only wait for each other, at every product of
every layer, all the more where other work keeps a core.
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
    """Let products take one thread: part of what torch sets is each thread's own, part is the process's."""
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
