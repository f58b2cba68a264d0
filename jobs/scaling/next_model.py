"""Which of its models a worker serves next, by the deadlines of all of them.

Pure: no SQL, no clock. Plans are compared: go on for a while, serve another model for a while, then serve what is left.
Each change of the model takes the time in which nothing is computed, so its loss is in every plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from jobs.chunks.fair_order import CLASSES
from jobs.scaling.rule import Due
from jobs.states import Priority

_GRAIN_SECONDS = 5.0
"""Smaller differences between two plans are below the error of the estimates."""
_MOST_ENDS = 8
"""Most lengths of a stretch that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one of the worker's models needs."""

    model: str
    start_seconds: float
    """From the decision to serve it until it computes."""
    dues: Mapping[Priority, Sequence[Due]] = field(default_factory=dict)
    """By class: work that the queue serves until all of the class that is due by a deadline has ended."""
    rate: float | None = None
    """Tokens a second of a worker; None where unknown."""
    others: int = 0
    """How many other workers serve it."""
    is_asked: bool = False
    """Whether anything waits for it: chunks, inputs to be counted, or that it is loaded for the first time."""
    has_chunks: bool = False
    """Whether chunks do. Without `dues` they have not been measured, or have no deadline."""

    @property
    def first_at(self) -> float | None:
        """Return its earliest deadline, None where it has none."""
        return min((due.at for dues in self.dues.values() for due in dues), default=None)


def next_model(demands: Sequence[Demand], *, serving: str | None, served_seconds: float, now: float) -> str:
    """Return the model to serve from now on; `serving` where the worker stays, which has served it for so long.

    Fewer seconds of work miss a deadline, those of higher classes first; then, fewer end less than one start-up time
    before it; then a higher class goes first; then the worker stays. Among models without work the first asked one is
    served.
    """
    due = {demand.model: first for demand in demands if (first := demand.first_at) is not None}
    current = next((demand for demand in demands if demand.model == serving), None)
    if current is not None and current.has_chunks and current.model not in due:
        return current.model  # the next measurement shows how much work it has
    if not due:
        return _asked(demands, serving)
    rates = [demand.rate for demand in demands if demand.rate]
    if not rates:  # what is served now is measured soon
        return serving if serving in due else min(due, key=lambda model: due[model])
    works = {
        demand.model: _work(demand, rate=demand.rate or min(rates), now=now)
        for demand in demands
        if demand.model in due
    }
    return _best(works, serving=serving, served_seconds=served_seconds)


def _asked(demands: Sequence[Demand], serving: str | None) -> str:
    asked = (demand.model for demand in demands if demand.is_asked)
    return next(asked, demands[0].model if serving is None else serving)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """What this worker has to do by one deadline."""

    rank: int
    left_seconds: float
    seconds: float
    """Of its own work; the other workers do the rest meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A model's work, in seconds of this worker."""

    start_seconds: float
    rank: int
    """Of its highest class."""
    ends: Sequence[float]
    """How long the worker has to serve it until what is due by each deadline has ended."""
    needs: Sequence[_Need]
    planned: Sequence[_Need]
    """The same, one start-up time before each deadline, or in half of a shorter time."""

    @property
    def total_seconds(self) -> float:
        return self.ends[-1]

    @property
    def latest_seconds(self) -> float:
        """Return when the worker has to begin, so that all of it ends as planned."""
        return min((need.left_seconds - need.seconds for need in self.planned), default=self.total_seconds)


def _work(demand: Demand, *, rate: float, now: float) -> _Work:
    dues = [(CLASSES.index(priority), due) for priority, own in demand.dues.items() for due in own]
    needs = [
        _Need(rank=rank, left_seconds=due.at - now, seconds=due.tokens / rate - demand.others * (due.at - now))
        for rank, due in dues
    ]
    own = [need for need in needs if need.seconds > 0]
    return _Work(
        start_seconds=demand.start_seconds,
        rank=min(rank for rank, _ in dues),
        ends=_few(sorted({due.tokens / rate / (demand.others + 1) for _, due in dues})),
        needs=own,
        planned=[
            _Need(
                rank=need.rank,
                left_seconds=max(need.left_seconds - demand.start_seconds, need.left_seconds / 2),
                seconds=need.seconds,
            )
            for need in own
        ],
    )


def _few(ends: Sequence[float]) -> Sequence[float]:
    """Return some of the lengths, evenly chosen, the first and the last among them."""
    if len(ends) <= _MOST_ENDS:
        return ends
    return [ends[number * (len(ends) - 1) // (_MOST_ENDS - 1)] for number in range(_MOST_ENDS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    first: str
    """The model that is served now."""
    stay_seconds: float
    stretches: Sequence[tuple[str, float]]
    """Models with the seconds for which each is served, in order."""


Served = Mapping[str, Sequence[tuple[float, float]]]
"""By model, from when to when it is served."""


def _best(works: Mapping[str, _Work], *, serving: str | None, served_seconds: float) -> str:
    plans = list(_plans(works, serving))
    current = works.get(serving or "")

    def cost(plan: _Plan) -> tuple[object, ...]:
        served = _timeline(plan.stretches, works, serving)
        missed, early = _missed(works, served, is_planned=False), _missed(works, served, is_planned=True)
        work = works[plan.first]
        # Leaving for a higher class costs no deadline, but time both ways: at most half of all time.
        may_hurry = current is None or served_seconds >= current.start_seconds + work.start_seconds
        rank = work.rank if may_hurry or current is None else current.rank
        return missed, early, rank, -plan.stay_seconds

    return min(plans, key=cost).first


def _plans(works: Mapping[str, _Work], serving: str | None) -> Iterator[_Plan]:
    """Yield plans: stay for a while, then serve another model for a while, then the rest."""
    if serving is not None and serving in works:
        total = works[serving].total_seconds
        yield _Plan(first=serving, stay_seconds=total, stretches=_with_rest([(serving, total)], works))
    for other in works:
        if other == serving:
            continue
        for stay in _stays(works, serving, other):
            for seconds in works[other].ends:
                own = [] if serving is None or not stay else [(serving, stay)]
                stretches = _with_rest([*own, (other, seconds)], works)
                yield _Plan(first=stretches[0][0], stay_seconds=stay, stretches=stretches)


def _stays(works: Mapping[str, _Work], serving: str | None, other: str) -> Iterator[float]:
    """Yield how long the worker may stay: not at all, until a deadline's work has ended, as long as the other waits."""
    yield 0.0
    if serving is None or serving not in works:
        return
    yield from works[serving].ends
    waits = works[other].latest_seconds - works[other].start_seconds
    if 0 < waits < works[serving].total_seconds:
        yield waits


def _with_rest(stretches: Sequence[tuple[str, float]], works: Mapping[str, _Work]) -> list[tuple[str, float]]:
    """Return the stretches, and then all that is left of each model, the most pressing first."""
    left = {model: work.total_seconds for model, work in works.items()}
    for model, seconds in stretches:
        left[model] -= seconds
    rest = [(model, seconds) for model, seconds in left.items() if seconds > 0]
    return [*stretches, *sorted(rest, key=lambda stretch: works[stretch[0]].latest_seconds)]


def _timeline(stretches: Sequence[tuple[str, float]], works: Mapping[str, _Work], serving: str | None) -> Served:
    served: dict[str, list[tuple[float, float]]] = defaultdict(list)
    at, last = 0.0, serving
    for model, seconds in stretches:
        at += 0.0 if model == last else works[model].start_seconds
        served[model].append((at, at + seconds))
        at, last = at + seconds, model
    return served


def _missed(works: Mapping[str, _Work], served: Served, *, is_planned: bool) -> list[int]:
    """Return by class how much work misses its deadline, in grains: of each model what its worst deadline lacks."""
    missed = [0.0] * len(CLASSES)
    for model, work in works.items():
        worst = [0.0] * len(CLASSES)
        for need in work.planned if is_planned else work.needs:
            done = sum(max(0.0, min(end, need.left_seconds) - begin) for begin, end in served.get(model, ()))
            worst[need.rank] = max(worst[need.rank], need.seconds - done)
        missed = [total + own for total, own in zip(missed, worst, strict=True)]
    return [round(seconds / _GRAIN_SECONDS) for seconds in missed]
