"""The lease of one claimed chunk: flushes, heartbeats and its end in the database, each checked against the fence.

While Postgres is down everything is retried, for as long as the lease may live.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts.covers import Covered
from jobs.accounts.money import PICOS_A_UNIT
from jobs.accounts.spill_days import NOTHING_SPENT, Spent
from jobs.chunks import covering, leasing
from jobs.chunks.leasing import ClaimedChunk, FlushOutcome, OtherEngineError
from jobs.chunks.recording import NOTHING_WASTED, LineResult, Wasted
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
"""Pause before a service that is down is called again."""

T = TypeVar("T")


class Abandoned(Exception):
    """This worker no longer runs the chunk; what still runs of it is aborted."""


class Outdone(Abandoned):
    """Another kind of engine gave the batch's first answer meanwhile: the lease still holds, for what is to be paid."""


class ChunkLease:
    """Every call is one transaction, and raises Abandoned if the chunk is lost or the database stays down.

    `is_batch_wanted` is the result of the last flush or heartbeat: False once the batch was cancelled or has expired.
    `is_complete` is True once a flush has ended the chunk.
    """

    def __init__(self, claim: ClaimedChunk, services: Services) -> None:
        self._claim = claim
        self._sessions = services.sessions
        self._hold_sessions = services.hold_sessions
        self._settings = services.settings
        self._meters = services.meters
        self._tally = services.tally
        self._traces = services.traces
        self._monotonic = services.monotonic
        self._extended_at = services.monotonic()
        self._num_flushes = 0
        self._covered = 0  # tokens that the chunk covers in the database
        self._covered_picos = 0  # and money
        self.is_batch_wanted = True
        self.is_complete = False
        self.num_tokens = 0
        """Tokens of the stored results, prompts and outputs."""
        self.trace_context: str | None = None
        """Trace context of the chunk's span, if it is traced."""

    @property
    def seconds_since_extended(self) -> float:
        """Return how long ago a flush or a heartbeat extended the lease."""
        return self._monotonic() - self._extended_at

    def cover(self, costs: Sequence[int], picos: Sequence[int]) -> Covered:
        """Cover further lines; `costs` and `picos` are the most tokens and money that each may use."""
        covered = self.run(
            lambda session, claim: covering.cover(
                session, claim, costs, covered=self._covered, picos=picos, covered_picos=self._covered_picos
            )
        )
        self._covered += covered.tokens
        self._covered_picos += covered.picos
        return covered

    def flush(
        self,
        results: Sequence[LineResult],
        *,
        most_running: int,
        most_picos: int,
        is_last: bool,
        worker_microseconds: int = 0,
        wasted: Wasted = NOTHING_WASTED,
        spent: Spent = NOTHING_SPENT,
        decided: Mapping[Kind, int] | None = None,
    ) -> None:
        """Store results, their worker time and the decisions about them; this also extends the lease.

        The lines that still run may use at most `most_running` tokens and cost `most_picos`. With `is_last` every line
        has its result now, and the chunk ends if its batch is still wanted. Raises Outdone where another kind of
        engine has answered its batch; nothing is stored then.
        """
        covered = min(most_running, self._covered)  # 0 if the tenant has no limit
        covered_picos = min(most_picos, self._covered_picos)

        def store(session: Session, claim: ClaimedChunk) -> FlushOutcome:
            # The same number until one attempt is known to have committed, so that a repeated flush is billed once.
            return leasing.flush(
                session,
                claim,
                results,
                flush_no=self._num_flushes,
                lease=self._settings.lease,
                covered=covered,
                covered_picos=covered_picos,
                worker_microseconds=worker_microseconds,
                wasted=wasted,
                spent=spent,
                decided=decided,
                is_last=is_last,
            )

        with (
            self._meters.timed(FLUSH_SECONDS, monotonic=self._monotonic),
            self._traces.span("flush", parent=self.trace_context, results=len(results)),
        ):
            try:
                outcome = self.run(store)
            except OtherEngineError as reason:
                raise Outdone(str(reason)) from None
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
        self._tally.add(recorded.input_tokens - recorded.cached_tokens + recorded.output_tokens)
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
        """Run `work` on the claimed chunk; it may run again if the outcome of a commit is unknown.

        The lease is extended until it succeeds, so that waiting for another's lock does not lose the chunk.
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
        """Extend the lease if the database answers; this locks nothing that others hold for long."""
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
