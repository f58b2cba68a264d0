"""Tests of reports' mails at a real SMTP server: one a day, never a second one after the server has accepted it."""

from __future__ import annotations

import json
import threading
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.orm import Session, sessionmaker

from features.pipelines.tables import Pipeline, RunStep
from features.reports import mails
from features.reports.mails import ClaimedMail
from features.reports.settings import ReportSettings
from features.reports.subscriptions import Wish, set_subscription
from features.reports.tables import DueReport
from features.reports.work import Mailer
from jobs.errors import FencedOutError, ServiceError
from jobs.ids import new_id
from jobs.storage import Storage
from jobs.tables import File
from tests.features.reports.fixtures import Days, stored
from tests.features.reports.mail_server import Inbox, settings_of

ANNA, BOB = "anna@example.com", "bob@example.com"
DAY = date(2026, 11, 20)
NIGHT = datetime(2026, 11, 20, 1, 30, tzinfo=UTC)


class Post:
    """A pipeline whose report of DAY is due, and the workers that mail it."""

    def __init__(self, maker: sessionmaker[Session], days: Days, inbox: Inbox, storage: Storage) -> None:
        self.maker, self.days, self.inbox, self.storage = maker, days, inbox, storage

    def due(self, *, mail_to: tuple[str, ...] = (ANNA,), include_rows: bool = False) -> str:
        pipeline = self.days.pipeline
        with self.maker.begin() as session:
            due = DueReport(id=new_id("report"), pipeline_id=pipeline.id, tenant_id=pipeline.tenant_id, day=DAY)
            due.mail_to, due.include_rows, due.state = list(mail_to), include_rows, "pending"
            session.add(due)
            return due.id

    def mailer(self, *, server: Any = None, maker: Any = None, **values: Any) -> Mailer:
        settings = settings_of(self.inbox, **values)
        return Mailer(maker or self.maker, self.storage, settings=settings, server=server, look_seconds=0.01)

    def claim(self) -> ClaimedMail:
        with self.maker.begin() as session:
            claimed = mails.claim(session)
        assert claimed is not None
        return claimed

    def let_pass(self, hours: float) -> None:
        with self.maker.begin() as session:
            span = {"span": timedelta(hours=hours)}
            session.execute(
                text(
                    "UPDATE due_report SET due_at = due_at - CAST(:span AS interval), created_at = created_at - :span"
                ),
                span,
            )

    @property
    def row(self) -> tuple[str, int, str | None]:
        with self.maker() as session:
            due = session.scalars(select(DueReport)).one()
            return due.state, due.num_tries, due.problem


@pytest.fixture
def post(maker: sessionmaker[Session], days: Days, inbox: Inbox, storage: Storage) -> Post:
    return Post(maker, days, inbox, storage)


def test_a_report_that_is_due_is_mailed_once_with_counts_and_links(post: Post) -> None:
    batch_id = post.days.batch_of(post.days.run(NIGHT, statistics=stored(failed=17), failed_lines=15))
    post.due(mail_to=(ANNA, BOB))
    for _ in range(3):
        post.mailer(mail_site="https://mill.example.com/").act()
    [(recipients, mail)] = post.inbox.mails
    assert (recipients, mail["To"], mail["From"]) == ([ANNA, BOB], f"{ANNA}, {BOB}", "mill@example.com")
    assert mail["Subject"] == "nightly 2026-11-20: finished, 17 rows failed"
    assert (mail["Auto-Submitted"], mail.get_content_type()) == ("auto-generated", "text/plain")
    [content] = post.inbox.texts
    for words in (f"tokenmill batch retry {batch_id}", "length 17", f"https://mill.example.com/batches/{batch_id}"):
        assert words in content
    assert f"https://mill.example.com/reports/{post.days.pipeline.id}?day=2026-11-20" in content
    assert post.row == ("sent", 1, None)


def test_mails_are_off_by_default(post: Post) -> None:
    post.due()
    Mailer(post.maker, post.storage, settings=ReportSettings()).act()
    assert (post.inbox.mails, post.row) == ([], ("pending", 0, None))


def test_a_subscription_leads_to_a_mail_each_day_by_a_running_worker(post: Post, session: Session) -> None:
    pipeline = post.days.pipeline
    wish = Wish(mail_to=[ANNA])
    set_subscription(session, pipeline.tenant_id, pipeline.id, wish, settings_of(post.inbox))
    session.execute(text("UPDATE report_subscription SET next_at = now() - interval '1 second'"))
    session.commit()
    mailer = post.mailer()
    mailer.start()
    pause = threading.Event()
    try:
        for _ in range(1000):
            if post.inbox.mails and post.row[0] == "sent":
                break
            pause.wait(0.01)
    finally:
        mailer.stop()
    assert post.inbox.subjects == [f"nightly {_day_of(session)}: no run"]


def _day_of(session: Session) -> str:
    return session.scalars(select(DueReport.day)).one().isoformat()


@pytest.fixture
def failed_rows(post: Post) -> None:
    """A night with a failed row, whose texts are in a file."""
    run = post.days.run(NIGHT, statistics=stored(rows=3, failed=1))
    lines = [{"text": f"private {n} {'x' * 1000}", "error": "cut"} for n in range(1, 9)]
    with post.storage.writer("rows") as writer:
        writer.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    with post.maker.begin() as session:
        file = File(
            id=new_id("file"), tenant_id=run.tenant_id, purpose="user_data", filename="rows.jsonl", size_bytes=1
        )
        file.object_key = "rows"
        session.add(file)
        session.flush()
        session.get_one(RunStep, (run.id, 0)).failed_rows_file_id = file.id


@pytest.mark.parametrize(("include_rows", "has_text"), [(False, False), (True, True)])
def test_texts_of_failed_rows_are_mailed_only_if_they_are_asked_for(
    post: Post, failed_rows: None, include_rows: bool, has_text: bool
) -> None:
    post.due(include_rows=include_rows)
    post.mailer().act()
    [content] = post.inbox.texts
    assert [f"private {n}" in content for n in (1, 5, 6)] == [has_text, has_text, False]
    assert "x" * 300 not in content


@pytest.mark.parametrize("include_rows", [False, True])
def test_a_runs_reason_which_may_quote_an_answer_is_not_mailed(post: Post, include_rows: bool) -> None:
    post.days.run(NIGHT, state="failed", reason="1 of 3 rows … The first: row-1: 'private words' (invalid_type)")
    post.due(include_rows=include_rows)
    post.mailer().act()
    [content] = post.inbox.texts
    assert ("private words" in content, f"tokenmill reports show {post.days.pipeline.id}" in content) == (False, True)


def test_a_mail_is_sent_without_texts_of_rows_that_the_store_has_lost(post: Post, failed_rows: None) -> None:
    post.storage.delete("rows")
    post.due(include_rows=True)
    post.mailer().act()
    assert len(post.inbox.mails) == 1
    assert "private" not in post.inbox.texts[0]


def test_a_server_that_is_away_is_tried_for_a_day(post: Post) -> None:
    post.due()
    post.inbox.answers = ["451 try again"] * 100
    mailer = post.mailer()
    for tries in range(1, 60):
        mailer.act()
        state, num_tries, problem = post.row
        assert problem == "the mail server cannot be used now"
        if state == "failed":
            break
        assert num_tries == tries
        mailer.act()
        assert post.row[1] == tries, "the next try is later"
        post.let_pass(1)
    assert 20 <= tries <= 26
    post.inbox.answers = []
    mailer.act()
    assert post.inbox.mails == []


def test_a_mail_comes_once_the_server_is_back(post: Post) -> None:
    post.due()
    post.inbox.answers = ["451 try again", "451 try again"]
    for _ in range(4):
        post.mailer().act()
        post.let_pass(1)
    assert (len(post.inbox.mails), post.row) == (1, ("sent", 3, None))


def test_a_mail_that_waited_for_more_than_a_day_is_not_sent(post: Post) -> None:
    post.due()
    post.let_pass(25)
    post.mailer().act()
    assert (post.inbox.mails, post.row[0]) == ([], "failed")


def test_what_the_server_refuses_for_good_is_not_tried_again(post: Post) -> None:
    post.due(mail_to=(ANNA,))
    post.inbox.refuses = {ANNA: "550 no such user"}
    post.mailer().act()
    assert post.row == ("failed", 1, f"{ANNA}: 550 no such user")


def test_a_refused_recipient_does_not_keep_the_others_from_their_mail(post: Post) -> None:
    post.due(mail_to=(ANNA, BOB))
    post.inbox.refuses = {ANNA: "550 no such user"}
    for _ in range(2):
        post.mailer().act()
    assert [recipients for recipients, _ in post.inbox.mails] == [[BOB]]
    assert post.row == ("sent", 1, f"{ANNA}: 550 no such user")


def test_a_domain_that_is_no_longer_allowed_gets_nothing(post: Post) -> None:
    post.due(mail_to=(ANNA, "carl@example.org"))
    post.mailer(mail_domains="example.org").act()
    assert [recipients for recipients, _ in post.inbox.mails] == [["carl@example.org"]]
    with post.maker.begin() as session:
        session.execute(text("UPDATE due_report SET state = 'pending', due_at = now()"))
    post.mailer(mail_domains="example.net").act()
    assert (len(post.inbox.mails), post.row[0]) == (1, "failed")


def test_what_the_operators_server_says_is_not_told_to_tenants(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    post.due()
    post.inbox.answers = ["554 relay 10.0.0.7 is full"]
    post.mailer().act()
    state, num_tries, problem = post.row
    assert (state, num_tries, "10.0.0.7" in str(problem), "10.0.0.7" in caplog.text) == ("failed", 1, False, True)


def test_a_password_that_is_not_set_is_not_told_to_tenants(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    post.due()
    post.mailer(mail_user="reports", mail_password="env:UNSET_VARIABLE").act()
    state, num_tries, problem = post.row
    assert (state, num_tries, "UNSET_VARIABLE" in str(problem)) == ("pending", 1, False)
    assert "UNSET_VARIABLE" in caplog.text


def test_recipients_that_are_refused_for_now_are_named_and_tried_again(post: Post) -> None:
    post.due()
    post.inbox.refuses = {ANNA: "450 greylisted"}
    post.mailer().act()
    assert post.row == ("pending", 1, f"{ANNA}: 450 greylisted")


class FailingMaker:
    """Sessions of which some fail: those from the time the server has accepted a mail, while `fails`."""

    def __init__(self, maker: sessionmaker[Session], inbox: Inbox) -> None:
        self.kw = maker.kw
        self._maker, self._inbox = maker, inbox
        self.fails = 2

    def begin(self) -> Any:
        if self._inbox.mails and self.fails:
            self.fails -= 1
            raise ServiceError("the database is away")
        return self._maker.begin()


def test_a_mail_that_could_not_be_recorded_is_not_sent_again(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("features.reports.work._RETRY_SECONDS", 0.0)
    post.due()
    maker = FailingMaker(post.maker, post.inbox)
    mailer = post.mailer(maker=maker)
    mailer.act()
    assert (len(post.inbox.mails), maker.fails, post.row[0]) == (1, 0, "sent")


def test_a_mail_whose_record_a_stop_cut_off_is_recorded_and_not_sent_at_the_next_claim(post: Post) -> None:
    post.due()
    mailer = post.mailer()
    claimed = post.claim()
    mailer._accepted[claimed.id] = None
    post.let_pass(1)
    mailer.act()
    assert (post.inbox.mails, post.row[0]) == ([], "sent")


def test_a_worker_that_has_lost_its_claim_sends_nothing(post: Post) -> None:
    post.due()
    old = post.claim()
    post.let_pass(1)
    new = post.claim()
    mailer = post.mailer()
    mailer._deliver(old)
    assert (post.inbox.mails, post.row[0]) == ([], "pending")
    mailer._deliver(new)
    assert (len(post.inbox.mails), post.row[0]) == (1, "sent")


def test_a_success_counts_also_after_the_claim_and_a_failure_does_not(post: Post) -> None:
    mail_id = post.due()
    old = post.claim()
    post.let_pass(1)
    new = post.claim()
    with pytest.raises(FencedOutError), post.maker.begin() as session:
        mails.record_failure(session, old, "late", is_final=True)
    with post.maker.begin() as session:
        assert mails.record_sent(session, mail_id, refused=None)
        assert not mails.record_sent(session, mail_id, refused=None)
    with pytest.raises(FencedOutError), post.maker.begin() as session:
        mails.MAILS.confirm(session, new)
    with pytest.raises(FencedOutError), post.maker.begin() as session:
        mails.record_failure(session, new, "away", is_final=False)
    assert post.row == ("sent", 1, None)


def test_two_workers_send_each_mail_once(post: Post, pipeline: Pipeline) -> None:
    post.due()
    workers = [threading.Thread(target=post.mailer().act) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(post.inbox.mails) == 1


def test_each_try_has_the_same_message_id(post: Post) -> None:
    mail_id = post.due()
    post.mailer().act()
    assert post.inbox.mails[0][1]["Message-ID"] == f"<{mail_id}@example.com>"
