"""Response objects of reports."""

from __future__ import annotations

from typing import Literal, Self

from api.schemas.wire import WireModel, unix_seconds, unix_seconds_or_none, unix_seconds_up
from features.pipelines.states import RunState
from features.reports.drift import LEAST_NIGHTS, Kind, Measure
from features.reports.report import DayRun, DayStatus, FailedStep, NextRun, Report
from features.reports.states import MailState
from features.reports.tables import DueReport, ReportSubscription
from jobs.accounts.money import rounded_micros

_MOST_RUNS = 100
_MOST_LABELS = 5


class ReportRun(WireModel):
    id: str
    status: RunState
    reason: str | None
    scheduled_for: int
    ended_at: int | None
    rows: int
    """That its first step read."""
    failed: int
    """Rows without an answer, of all its steps."""

    @classmethod
    def of(cls, run: DayRun) -> Self:
        return cls(
            id=run.run_id,
            status=RunState(run.state),
            reason=run.reason,
            scheduled_for=unix_seconds(run.scheduled_for),
            ended_at=unix_seconds_or_none(run.ended_at),
            rows=run.num_rows,
            failed=run.num_failed,
        )


class ReportFailedStep(WireModel):
    run_id: str
    step: str
    rows: int
    failed: int
    codes: dict[str, int]
    """Failed rows by the code of their error; `not_rendered` if the prompt could not be rendered."""
    failed_rows: list[str]
    """The ids of the first 20, as in the file of rows."""
    rows_file_id: str | None
    """The file with the step's rows as they were read."""
    failed_rows_file_id: str | None
    """The file with its rows without an answer, for another prompt; null before the step is done."""
    batch_id: str | None
    retryable: int
    """Failed lines of the batch, once it has ended."""
    retry: str | None
    """The command that runs these lines again, as they were; null if there are none."""

    @classmethod
    def of(cls, step: FailedStep) -> Self:
        return cls(
            run_id=step.run_id,
            step=step.step,
            rows=step.num_rows,
            failed=step.num_failed,
            codes=dict(step.codes),
            failed_rows=list(step.failed_rows),
            rows_file_id=step.rows_file_id,
            failed_rows_file_id=step.failed_rows_file_id,
            batch_id=step.batch_id,
            retryable=step.num_retryable,
            retry=f"tokenmill batch retry {step.batch_id}" if step.num_retryable else None,
        )


class ReportLabel(WireModel):
    label: str
    share: float
    usual: float


class ReportMeasure(WireModel):
    step: str
    measure: Kind
    """`failed_rate` of rows; of a column's answers `null_rate`, `length` (the geometric mean of a text's characters or
    a list's items), and `labels`: the share of answers that moved from one label to another."""
    field: str | None
    """The column of the answers; null for rows."""
    value: float
    usual: float
    """The median of the earlier nights."""
    low: float
    """Drift begins below this, and above `high`."""
    high: float
    drifted: bool
    labels: list[ReportLabel]
    """Of `labels`, those that moved most, with their usual shares."""

    @classmethod
    def of(cls, measure: Measure) -> Self:
        return cls(
            step=measure.step,
            measure=measure.kind,
            field=measure.field,
            value=measure.value,
            usual=measure.usual,
            low=measure.low,
            high=measure.high,
            drifted=measure.has_drifted,
            labels=[
                ReportLabel(label=one.label, share=one.share, usual=one.usual) for one in measure.labels[:_MOST_LABELS]
            ],
        )


class ReportDrift(WireModel):
    nights: int
    """Earlier nights with a run that succeeded, at most seven."""
    nights_needed: int
    """With fewer nothing is compared."""
    changed_steps: list[str]
    """Steps whose definition is not that of the last night."""
    measures: list[ReportMeasure]

    @classmethod
    def of(cls, report: Report) -> Self:
        return cls(
            nights=report.num_nights,
            nights_needed=LEAST_NIGHTS,
            changed_steps=list(report.changed_steps),
            measures=[ReportMeasure.of(one) for one in report.measures],
        )


class ReportNextRun(WireModel):
    schedule: str
    at: int
    local: str
    """In the time zone of its schedule."""
    eta: int | None
    """Its end if it takes as long as the last seven runs of its schedule did, by their median; null after fewer than
    five."""
    eta_earliest: int | None
    """With `eta_latest` the range of those runs."""
    eta_latest: int | None

    @classmethod
    def of(cls, run: NextRun) -> Self:
        return cls(
            schedule=run.schedule,
            at=unix_seconds(run.at),
            local=run.local.isoformat(),
            eta=unix_seconds_up(run.end.expected_at),
            eta_earliest=unix_seconds_up(run.end.earliest_at),
            eta_latest=unix_seconds_up(run.end.latest_at),
        )


class ReportObject(WireModel):
    object: Literal["pipeline.report"] = "pipeline.report"
    pipeline_id: str
    pipeline: str
    """Its name."""
    day: str
    time_zone: str
    """Of its first schedule; UTC without one."""
    status: DayStatus
    """`in_progress` while a run has not ended; otherwise that of the last run."""
    reason: str | None
    ended_at: int | None
    """The end of the last run; null while one has not ended."""
    runs: list[ReportRun]
    """The runs scheduled for the day, in their order; the last 100."""
    num_runs: int
    rows: int
    failed: int
    failed_steps: list[ReportFailedStep]
    """Those with most failed rows first."""
    total_tokens: int
    cost_micros: int
    cost_micros_day_before: int
    currency: str
    drift: ReportDrift
    eta: int | None
    """When the run in progress is expected to end; null without one, and while unknown."""
    eta_earliest: int | None
    eta_latest: int | None
    next_run: ReportNextRun | None

    @classmethod
    def of(cls, report: Report, *, currency: str) -> Self:
        return cls(
            pipeline_id=report.pipeline_id,
            pipeline=report.pipeline,
            day=report.day.isoformat(),
            time_zone=report.zone,
            status=report.status,
            reason=report.reason,
            ended_at=unix_seconds_or_none(report.ended_at),
            runs=[ReportRun.of(run) for run in report.runs[-_MOST_RUNS:]],
            num_runs=len(report.runs),
            rows=report.num_rows,
            failed=report.num_failed,
            failed_steps=[ReportFailedStep.of(step) for step in report.failed_steps],
            total_tokens=report.used_tokens,
            cost_micros=rounded_micros(report.cost_picos),
            cost_micros_day_before=rounded_micros(report.cost_before_picos),
            currency=currency,
            drift=ReportDrift.of(report),
            eta=unix_seconds_up(report.end.expected_at),
            eta_earliest=unix_seconds_up(report.end.earliest_at),
            eta_latest=unix_seconds_up(report.end.latest_at),
            next_run=None if report.next_run is None else ReportNextRun.of(report.next_run),
        )


class ReportMail(WireModel):
    day: str
    status: MailState
    tries: int
    ended_at: int | None
    problem: str | None
    """Why the last try failed, or which recipients the server refused."""

    @classmethod
    def of(cls, due: DueReport) -> Self:
        return cls(
            day=due.day.isoformat(),
            status=MailState(due.state),
            tries=due.num_tries,
            ended_at=unix_seconds_or_none(due.ended_at),
            problem=due.problem,
        )


class ReportSubscriptionObject(WireModel):
    object: Literal["pipeline.report_subscription"] = "pipeline.report_subscription"
    pipeline_id: str
    at: str
    """When a report is due each day, in the time zone of the pipeline's days."""
    mail_to: list[str]
    include_rows: bool
    """Whether mails hold texts of failed rows."""
    next_at: int
    last_mail: ReportMail | None
    """That of the latest day; null before the first."""

    @classmethod
    def of(cls, subscription: ReportSubscription, last: DueReport | None) -> Self:
        hours, minutes = divmod(subscription.at_minutes, 60)
        return cls(
            pipeline_id=subscription.pipeline_id,
            at=f"{hours:02d}:{minutes:02d}",
            mail_to=list(subscription.mail_to),
            include_rows=subscription.include_rows,
            next_at=unix_seconds(subscription.next_at),
            last_mail=None if last is None else ReportMail.of(last),
        )


class DeletedReportSubscription(WireModel):
    object: Literal["pipeline.report_subscription"] = "pipeline.report_subscription"
    pipeline_id: str
    deleted: Literal[True] = True
