"""Purges deleted indexes: their batches and files, objects and rows; rows of fills; and objects that no row names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session, sessionmaker

from features.retrieval import stages
from features.retrieval.objects import named_key, vectors_key
from features.retrieval.states import TERMINAL_INDEX_STATES
from features.retrieval.tables import IndexSegment, PassageFill, PassageIndex
from flows import rows
from flows.deletion import delete_batches
from jobs import deletions
from jobs.database import transaction
from jobs.purges import SWEEP_AGAIN, Purge
from jobs.retention.backups import are_objects_held
from jobs.retention.purging import delete_objects
from jobs.settings import Settings
from jobs.storage import Storage, StoredObject, prepared, tokenizers
from jobs.storage.store_owner import may_sweep
from jobs.tables import Batch, Tenant

log = logging.getLogger(__name__)

_ROWS = 100  # per transaction
_ENDED = [state.value for state in TERMINAL_INDEX_STATES]


def purges(maker: sessionmaker[Session], storage: Storage, settings: Settings) -> Sequence[Purge]:
    """Return the purges of indexes, for `Feature.purges`."""
    age = timedelta(hours=settings.leftover_hours)
    return (
        Purge(what="indexes", step=lambda: purge_indexes(maker, storage)),
        Purge(what="fills", step=lambda: purge_fills(maker)),
        Purge(
            what="leftovers of indexes",
            chore="sweep indexes",
            step=lambda: sweep_index_objects(maker, storage, age=age),
            again=SWEEP_AGAIN,
        ),
    )


def purge_indexes(maker: sessionmaker[Session], storage: Storage) -> int:
    """Delete the data of deleted indexes and of deleted tenants' indexes; return how many indexes are gone.

    An index is retried in the next run while its batch is being cancelled, or if the store fails to delete an object.
    """
    with transaction(maker) as session:
        session.execute(_DELETE_OF_DELETED_TENANTS)
        due = select(PassageIndex.id).where(PassageIndex.deleted_at.is_not(None), PassageIndex.state.in_(_ENDED))
        index_ids = session.scalars(due.order_by(PassageIndex.deleted_at).limit(_ROWS)).all()
    return sum(_purge(maker, storage, index_id) for index_id in index_ids)


def purge_fills(maker: sessionmaker[Session]) -> int:
    """Delete the rows of ended fills whose batch, and with it their own batches, is deleted; return how many."""
    num_gone = 0
    while True:
        with transaction(maker) as session:
            fill_ids = session.scalars(_FILLS_OF_DELETED.limit(_ROWS)).all()
            rows.forget(session, fill_ids)
        if not fill_ids:
            return num_gone
        num_gone += len(fill_ids)


def sweep_index_objects(maker: sessionmaker[Session], storage: Storage, *, age: timedelta) -> int:
    """Delete index objects and tokenizers older than `age` that no row names; return how many.

    They come from killed workers and from models that have changed. Objects of tenants unknown to this database belong
    to another one.
    """
    if not may_sweep(maker, storage):
        return 0
    with transaction(maker) as session:
        now = session.scalar(select(func.now()))
    assert now is not None
    old = _old_objects(storage.iter_objects(), now - age)
    num_gone = 0
    while block := list(islice(old, _ROWS)):
        with transaction(maker) as session:
            if are_objects_held(session):
                return num_gone
            unneeded, unnamed = _unneeded(session, block), _unnamed_tokenizers(session, block)
        unneeded += [name for name in unnamed if tokenizers.is_old(storage, name, now - age)]
        num_gone += len(delete_objects(storage, {name: name for name in unneeded}))
    return num_gone


def _old_objects(objects: Iterable[StoredObject], limit: datetime) -> Iterable[str]:
    old = (each.name for each in objects if each.modified_at < limit)
    return (name for name in old if named_key(name) is not None or tokenizers.named_sha256(name) is not None)


def _unnamed_tokenizers(session: Session, names: Sequence[str]) -> list[str]:
    """Return the tokenizers among these objects that no model has and no unfinished index needs."""
    hashes = {name: sha256 for name in names if (sha256 := tokenizers.named_sha256(name)) is not None}
    needed = set(hashes.values())
    is_mine = PassageIndex.tokenizer_sha256.in_(needed) & PassageIndex.state.not_in(_ENDED)
    of_indexes = set(session.scalars(select(PassageIndex.tokenizer_sha256).where(is_mine)))
    named = tokenizers.of_models(session, needed) | of_indexes
    return [name for name, sha256 in hashes.items() if sha256 not in named]


def _unneeded(session: Session, names: Sequence[str]) -> list[str]:
    """Return the objects among these that no row names."""
    keys = {name: key for name in names if (key := named_key(name)) is not None}
    wanted_keys = set(keys.values())
    ours = set(session.scalars(select(Tenant.id).where(Tenant.id.in_(set(map(prepared.tenant_of, wanted_keys))))))
    named = set(session.scalars(select(IndexSegment.object_key).where(IndexSegment.object_key.in_(wanted_keys))))
    kept = select(PassageIndex.documents_key).where(PassageIndex.documents_key.in_(wanted_keys))
    named |= set(session.scalars(kept))
    return [name for name, key in keys.items() if key not in named and prepared.tenant_of(key) in ours]


def _purge(maker: sessionmaker[Session], storage: Storage, index_id: str) -> bool:
    """Delete one index for good; return False if that is not possible yet."""
    with transaction(maker) as session:
        if are_objects_held(session):
            return False
        if not delete_batches(session, stages.stages_of(session, index_id), by=deletions.RETENTION):
            return False
        keys = _object_keys(session, index_id)
    if len(delete_objects(storage, {key: key for key in keys})) < len(keys):
        return False
    with transaction(maker) as session:
        session.execute(delete(IndexSegment).where(IndexSegment.index_id == index_id))
        rows.forget(session, [index_id])
    return True


def _object_keys(session: Session, index_id: str) -> list[str]:
    index = session.get(PassageIndex, index_id)
    documents = [] if index is None or index.documents_key is None else [index.documents_key]
    segments = session.scalars(select(IndexSegment.object_key).where(IndexSegment.index_id == index_id))
    return documents + [key for object_key in segments for key in (object_key, vectors_key(object_key))]


_FILLS_OF_DELETED = (
    select(PassageFill.id)
    .join(Batch, Batch.id == PassageFill.for_batch_id)
    .where(Batch.deleted_at.is_not(None), PassageFill.ended_at.is_not(None))
    .order_by(PassageFill.id)
)

_DELETE_OF_DELETED_TENANTS = text("""
    UPDATE passage_index SET deleted_at = now() FROM flow JOIN tenant ON tenant.id = flow.tenant_id
    WHERE flow.id = passage_index.id AND passage_index.deleted_at IS NULL AND tenant.deleted_at IS NOT NULL
""")
