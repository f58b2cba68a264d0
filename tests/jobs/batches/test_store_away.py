"""Tests that a batch is completed once its files are in the store, whatever replaces the store meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from jobs.batches import sweeps
from jobs.chunks import leasing
from jobs.errors import ServiceError
from jobs.states import BatchState
from jobs.storage import ObjectWriter, Storage, store_marker
from jobs.tables import Batch, File
from tests.jobs.batches.control import finalise
from tests.jobs.chunks.builders import claim_first, flush


class UnmountedMidway(Storage):
    """Its folder is replaced by an empty one before or after a file is written."""

    def __init__(self, inner: Storage, root: Path, *, before: bool) -> None:
        self._inner, self._root, self._before = inner, root, before

    @contextmanager
    def writer(self, key: str) -> Iterator[ObjectWriter]:
        if self._before:
            self._unmount()
        with self._inner.writer(key) as writer:
            yield writer
            if not self._before:
                self._unmount()

    def _unmount(self) -> None:
        self._root.rename(self._root.with_name("unmounted"))
        self._root.mkdir()


@pytest.mark.parametrize("before", [True, False])
def test_a_batch_whose_store_is_unmounted_while_its_files_are_written_completes_once_it_is_back(
    session: Session, maker: sessionmaker[Session], run: Callable[..., Batch], tmp_path: Path, *, before: bool
) -> None:
    root = tmp_path / "objects"
    batch = run(3)
    file = session.get_one(File, batch.input_file_id)
    file.object_key = "tenant_0/object_0"
    session.commit()
    Storage(root.as_uri()).put(file.object_key, b"input")
    storage = Storage(root.as_uri(), is_marked=True)
    store_marker.bind(maker, storage)
    claimed = claim_first(session, batch)
    flush(session, claimed, range(3))
    leasing.complete(session, claimed)
    sweeps.finish_ready(session)
    session.commit()
    with pytest.raises(ServiceError):
        finalise(session, UnmountedMidway(storage, root, before=before), batch.id)
    session.refresh(batch)
    assert (batch.state, batch.output_file_id) == (BatchState.FINALIZING, None)
    assert [path for path in root.rglob("*") if path.is_file()] == []
    for folder in sorted(root.rglob("*"), reverse=True):
        folder.rmdir()
    root.rmdir()
    root.with_name("unmounted").rename(root)
    assert finalise(session, storage, batch.id) is BatchState.COMPLETED
    session.refresh(batch)
    assert batch.output_file_id is not None
    written = session.get_one(File, batch.output_file_id)
    assert storage.size(written.object_key) == written.size_bytes
