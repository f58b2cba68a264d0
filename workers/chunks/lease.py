"""One claimed chunk in the database, as its worker holds it: flushes, heartbeats and its end, each under the fence.

Knows no engine and no text. While Postgres is away everything is tried again, for as long as the lease may live.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sqlalchemy.orm import Session, sessionmaker

from jobs import decisions
from jobs.accounts.covers import Covered
from jobs.accounts.money import PICOS_A_UNIT
from jobs.chunks import covering, leasing
from jobs.chunks.leasing import ClaimedChunk, FlushOutcome
from jobs.chunks.recording import LineResult
from jobs.database import transaction
from jobs.decisions import Kind
from jobs.errors import FencedOutError, ServiceError
from jobs.telemetry.declared import (
    ALL_TENANTS,
    BILLED_COST,
    BILLED_TOKENS,
    FLUSH_SECONDS,
    RESULTS,
    TRANSACTION_RETRIES,
)
from workers.chunks.services import Services

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
"""A pause before a service that is away is asked again."""

T = TypeVar("T")


class Abandoned(Exception):
    """The chunk is no longer ours to finish; whatever the engine still runs of it is aborted."""


class ChunkLease:
    """Every call is one transaction, and raises Abandoned where the chunk is lost or the database stays away.

    `is_batch_wanted` is what the last flush or heartbeat found: False once the batch was cancelled or has expired.
    `is_complete` once a flush has ended the chunk.
    """

    def __init__(self, claim: ClaimedChunk, services: Services) -> None:
        self._claim = claim
        self._sessions = services.sessions
        self._hold_sessions = services.hold_sessions
        self._settings = services.settings
        self._meters = services.meters
        self._traces = services.traces
        self._monotonic = services.monotonic
        self._extended_at = services.monotonic()
        self._num_flushes = 0
        self._covered = 0  # what the chunk covers in the database, in tokens,
        self._covered_picos = 0  # and in money
        self.is_batch_wanted = True
        self.is_complete = False
        self.num_tokens = 0
        """Of what was stored, prompts and outputs."""
        self.trace_context: str | None = None
        """Of the chunk's span, where it is traced."""

    @property
    def seconds_since_extended(self) -> float:
        """Return how long ago a flush or a heartbeat has extended the lease."""
        return self._monotonic() - self._extended_at

    def cover(self, costs: Sequence[int], picos: Sequence[int]) -> Covered:
        """Cover further lines that may use so many tokens and cost so much each."""
        found = self.run(
            lambda session, claim: covering.cover(
                session, claim, costs, covered=self._covered, picos=picos, covered_picos=self._covered_picos
            )
        )
        self._covered += found.tokens
        self._covered_picos += found.picos
        return found

    def flush(
        self,
        results: Sequence[LineResult],
        *,
        most_running: int,
        most_picos: int,
        is_last: bool,
        worker_microseconds: int = 0,
        decided: Mapping[Kind, int] | None = None,
    ) -> None:
        """Store results, the time that they took, and what was decided of them, which also extends the lease.

        Only lines that may use `most_running` tokens and cost `most_picos` still run. With `is_last` every line has its
        result now, and the chunk ends with it where its batch is wanted.
        """
        covered = min(most_running, self._covered)  # none, where the tenant has no limit
        covered_picos = min(most_picos, self._covered_picos)

        def store(session: Session, claim: ClaimedChunk) -> FlushOutcome:
            # The same number until one attempt is known to have committed: so what is stored twice is billed once.
            outcome = leasing.flush(
                session,
                claim,
                results,
                flush_no=self._num_flushes,
                lease=self._settings.lease,
                covered=covered,
                covered_picos=covered_picos,
                worker_microseconds=worker_microseconds,
                is_last=is_last,
            )
            for kind, num in sorted((decided or {}).items()):  # in one order, as each locks a row
                decisions.note(session, claim.batch_id, kind, subject=claim.worker_id, num=num)
            return outcome

        with (
            self._meters.timed(FLUSH_SECONDS, monotonic=self._monotonic),
            self._traces.span("flush", parent=self.trace_context, results=len(results)),
        ):
            outcome = self.run(store)
        self._count(outcome)
        self._num_flushes += 1
        self._covered, self._covered_picos = covered, covered_picos
        self.is_complete = is_last and outcome.batch_wanted
        self._note_extended(is_batch_wanted=outcome.batch_wanted)

    def _count(self, outcome: FlushOutcome) -> None:
        recorded = outcome.recorded
        if recorded is None or not recorded.num_results:
            return
        self.num_tokens += recorded.input_tokens + recorded.output_tokens
        meters, tenant = self._meters, self._claim.tenant_id if self._settings.metrics_tenants else ALL_TENANTS
        meters.count(RESULTS, "completed", by=recorded.num_completed)
        meters.count(RESULTS, "failed", by=recorded.num_failed)
        meters.count(BILLED_TOKENS, tenant, "input", by=recorded.input_tokens)
        meters.count(BILLED_TOKENS, tenant, "cached", by=recorded.cached_tokens)
        meters.count(BILLED_TOKENS, tenant, "output", by=recorded.output_tokens)
        meters.count(BILLED_COST, tenant, self._settings.currency, by=recorded.cost_picos / PICOS_A_UNIT)

    def extend(self) -> None:
        """Extend the lease between flushes: the chunk's heartbeat."""
        outcome = self._run(
            lambda session, claim: leasing.extend(session, claim, lease=self._settings.lease), self._hold_sessions
        )
        self._note_extended(is_batch_wanted=outcome.batch_wanted)

    def run(self, work: Callable[[Session, ClaimedChunk], T]) -> T:
        """Do `work` on the claimed chunk; it may be done again where the outcome of a commit is unknown.

        Until it passes the lease is held: whoever makes it wait for a lock must not cost the chunk.
        """
        return self._run(work, self._sessions)

    def _run(self, work: Callable[[Session, ClaimedChunk], T], sessions: sessionmaker[Session]) -> T:
        deadline = self._monotonic() + self._settings.lease_seconds
        while True:
            try:
                with transaction(sessions) as session:
                    return work(session, self._claim)
            except FencedOutError:
                raise _another_owns_it() from None
            except ServiceError as error:
                if self._hold():
                    deadline = self._monotonic() + self._settings.lease_seconds
                elif self._monotonic() >= deadline:
                    raise Abandoned(f"the database stayed away: {error}") from None
                self._meters.count(TRANSACTION_RETRIES)
                log.warning("transaction failed, trying again chunk_id=%s error=%s", self._claim.chunk_id, error)
                time.sleep(RETRY_SECONDS)

    def _hold(self) -> bool:
        """Extend the lease if the database allows; this locks nothing that others hold for long."""
        try:
            with transaction(self._hold_sessions) as session:
                outcome = leasing.extend(session, self._claim, lease=self._settings.lease)
        except FencedOutError:
            raise _another_owns_it() from None
        except ServiceError:
            return False
        self._note_extended(is_batch_wanted=outcome.batch_wanted)
        return True

    def _note_extended(self, *, is_batch_wanted: bool) -> None:
        self._extended_at = self._monotonic()
        self.is_batch_wanted = is_batch_wanted


def _another_owns_it() -> Abandoned:
    return Abandoned("another worker owns it by now")
