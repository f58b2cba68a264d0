"""Advance a course as far as possible: end the open stage or begin the next one, until there is none."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import Generic, TypeVar

from sqlalchemy.orm import Session, sessionmaker

from jobs.claims.claims import Claims
from jobs.claims.work import ClaimedWork
from jobs.courses.standing import CourseStanding
from jobs.graphs.advancing import Advancer
from jobs.settings import Settings
from jobs.states import TERMINAL_BATCH_STATES, BatchState
from jobs.storage import Storage
from jobs.tables.courses import CourseRow, StageColumns

Course = TypeVar("Course", bound=CourseRow)
Standing = TypeVar("Standing", bound=CourseStanding[StageColumns])


class CourseAdvancer(Advancer[Course], Generic[Course, Standing]):
    """A control worker's handling of one kind of course."""

    _claims_on_them: Claims[Course]

    def __init__(
        self,
        sessions: sessionmaker[Session],
        storage: Storage,
        settings: Settings,
        *,
        hold_sessions: sessionmaker[Session] | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """As `Advancer`."""
        super().__init__(self._claims_on_them, sessions, settings, hold_sessions=hold_sessions, is_stopping=is_stopping)
        self._storage = storage

    @abstractmethod
    def _look(self, session: Session, course_id: str) -> Standing:
        """Return the current standing of a course."""

    @abstractmethod
    def _begin_next(self, work: ClaimedWork[Course], standing: Standing) -> bool:
        """Begin the next stage, or publish the results where there is none; return whether the course continues."""

    @abstractmethod
    def _end_stage(self, work: ClaimedWork[Course], standing: Standing) -> None:
        """Record the results of the open stage, whose batch has ended, and that it is over."""

    def _go_on(self, work: ClaimedWork[Course]) -> bool:
        with work.reading() as session:
            standing = self._look(session, work.claim.id)
        if standing.is_over:
            return False
        batch = standing.open_batch
        if standing.is_stopped:
            self._stop(work, batch)
            return False
        if standing.open_stage is None:
            return self._begin_next(work, standing)
        if batch is not None and BatchState(batch.state) not in TERMINAL_BATCH_STATES:
            return False
        self._end_stage(work, standing)
        return True

    def _note_code(self, graph: Course, code: str) -> None:
        """A course shows only its reason."""

    def _came_to_it(self, session: Session, graph: Course) -> datetime:
        begun = self._look(session, graph.id).begun
        ended_at = begun[-1].done_at if begun else None
        return ended_at or graph.created_at

    def _waits_until(self, session: Session, graph: Course) -> datetime:
        del session
        return graph.expires_at
