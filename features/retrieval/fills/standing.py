"""Standing of a fill: its batch and the batch's input, the lookups that have begun, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from sqlalchemy.orm import Session

from features.retrieval.fills.asking import Lookup
from features.retrieval.tables import FillNode, PassageFill
from flows import nodes, standing
from jobs import files
from jobs.errors import NotFoundError
from jobs.tables import Batch, File


@dataclass(frozen=True, kw_only=True)
class Standing(standing.Standing[PassageFill, FillNode]):
    """A fill as its worker last read it."""

    batch: Batch
    """That is filled."""
    input: File
    """Its input, not filled yet."""
    keys: Mapping[str, str]
    """Objects of the lookups' result files, by the files' ids; those that were deleted are left out."""

    @property
    def next_lookups(self) -> list[Lookup]:
        """Return the lookup to begin next; none after the search."""
        if not self.begun:
            return [Lookup.EMBED]
        return [] if self.begun[-1].name == Lookup.FIND else [Lookup.FIND]

    @property
    def embedded(self) -> Mapping[str, Batch] | None:
        """Return the batches that have embedded queries, by model; None where none has begun."""
        batches = [self.batch_of(node) for node in self.begun if node.name == Lookup.EMBED]
        named = zip(self.flow.models, batches, strict=True)
        return {model: batch for model, batch in named if batch is not None} or None

    @property
    def search(self) -> Batch | None:
        """Return the batch that has searched, if one has begun."""
        searches = [node for node in self.begun if node.name == Lookup.FIND]
        return self.batch_of(searches[0]) if searches else None


def look(session: Session, flow_id: str) -> Standing:
    """Return the current standing of a fill. Raises NotFoundError if its row is gone."""
    fill = session.get(PassageFill, flow_id)
    if fill is None:
        raise NotFoundError(f"fill {flow_id!r} is gone")
    begun = nodes.nodes_of(session, FillNode, flow_id)
    batch = session.get_one(Batch, fill.for_batch_id)
    kind = partial(
        Standing,
        batch=batch,
        input=session.get_one(File, batch.input_file_id),
        keys=_keys(session, nodes.batches_of(session, begun).values()),
    )
    return standing.read(session, fill, begun, kind)


def _keys(session: Session, batches: Iterable[Batch]) -> dict[str, str]:
    owners = [
        (batch.tenant_id, file_id) for batch in batches for file_id in (batch.output_file_id, batch.error_file_id)
    ]
    kept = [files.find_kept(session, tenant_id, file_id) for tenant_id, file_id in owners if file_id is not None]
    return {file.id: file.object_key for file in kept if file is not None}
