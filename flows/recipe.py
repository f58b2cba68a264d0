"""The interface of a recipe: what comes next in a flow, and what its nodes do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import ClassVar, Generic, TypeVar

from sqlalchemy.orm import Session

from flows import rows
from flows.standing import AnyStanding
from flows.tables import Flow, FlowNode
from jobs.claims.work import ClaimedWork
from jobs.errors import InputError

FlowRow = TypeVar("FlowRow", bound=Flow)


class EndEarlyError(InputError):
    """What is left of a flow is dispensable and has no room: it completes without it, for this reason."""


class Recipe(ABC, Generic[FlowRow, AnyStanding]):
    """What one kind of flow does. Each effect is one transaction under the claim, or can be repeated."""

    name: ClassVar[str]
    """The value of `flow.recipe`."""
    kind: type[FlowRow]
    outlasts_services: ClassVar[bool] = False
    """Whether a flow waits for a service that is away as long as it may, instead of failing after some tries."""

    @abstractmethod
    def look(self, session: Session, flow_id: str) -> AnyStanding:
        """Return the current standing of a flow. Raises NotFoundError if its row is gone."""

    @abstractmethod
    def next_nodes(self, standing: AnyStanding) -> Sequence[str]:
        """Return which node begins next, now that all begun ones have ended; empty: the flow is complete.

        A function of the standing alone. Of several names the first one that has something to do begins.
        """

    @abstractmethod
    def begin(self, work: ClaimedWork[FlowRow], standing: AnyStanding, name: str) -> bool:
        """Write the lines of a node and create its batch; return False if it has nothing to do and is left out.

        Where nothing can follow before the batch has ended, the same transaction may release the flow, which saves
        another look.
        Raises EndEarlyError, InputError where the flow fails for it, and what creating a batch raises.
        """

    @abstractmethod
    def end(self, work: ClaimedWork[FlowRow], standing: AnyStanding, node: FlowNode) -> None:
        """Record the results of a node, whose batch has ended, and that it is over.

        Raises InputError where the flow fails for it.
        """

    def act(self, work: ClaimedWork[FlowRow], standing: AnyStanding) -> bool:
        """Act on the open nodes of a flow; return whether to look at it again at once.

        Here nodes end together: a recipe that acts on each result as it comes has its own.
        """
        if standing.running:
            self.watch(work, standing)
            return False
        for node in standing.open_nodes:
            self.end(work, standing, node)
        return bool(standing.open_nodes)

    @abstractmethod
    def complete(self, work: ClaimedWork[FlowRow], standing: AnyStanding, *, reason: str | None) -> None:
        """Write the outputs of a flow and end it; `reason`: why it ends early."""

    @abstractmethod
    def cancel(self, session: Session, flow: FlowRow, *, reason: str) -> None:
        """Start cancelling a locked flow that is under way."""

    @abstractmethod
    def end_early(self, session: Session, flow: FlowRow, *, is_cancelled: bool) -> None:
        """End a locked flow, as cancelled or as failed."""

    @abstractmethod
    def waits_until(self, standing: AnyStanding) -> datetime:
        """Return until when a flow may wait for its tenant's limits."""

    def lock(self, session: Session, flow_id: str) -> FlowRow | None:
        """Return a flow, freshly read and locked until the transaction ends, or None."""
        return rows.lock(session, self.kind, flow_id)

    def watch(self, work: ClaimedWork[FlowRow], standing: AnyStanding) -> None:
        """Act on a flow that is due although batches of it have not ended."""

    def began_at(self, standing: AnyStanding) -> datetime:
        """Return when a flow reached its first node."""
        return standing.flow.created_at

    def is_any_waiting(self, session: Session) -> bool:
        """Return whether `start_waiting` would find a flow."""
        del session
        return False

    def start_waiting(self, session: Session) -> None:
        """Start flows that waited until no other one of their lane is under way."""

    def note_code(self, flow: FlowRow, code: str) -> None:
        """Record the error code of a locked flow, where its kind shows one."""
