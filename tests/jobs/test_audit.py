from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from jobs.accounts import budgets
from jobs.audit.audit import audit
from jobs.batches import deletion
from jobs.chunks import unbilled
from jobs.errors import NotFoundError
from jobs.partitions import batch_day, partition_days
from jobs.retention import purging
from jobs.storage import Storage
from jobs.tables import Batch, Chunk, Ledger, Result

Make = Callable[..., Any]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(f"file://{tmp_path}/objects")


@pytest.fixture
def batch(session: Session, storage: Storage, make_batch: Make, make_file: Make) -> Batch:
    """A completed batch of three valid lines and a failed one, in two chunks, all consistent."""
    lines = {name: b'{"n":1}\n' * count for name, count in (("out", 3), ("err", 1))}
    made = {
        name: make_file(purpose="batch_output", object_key=name, size_bytes=storage.put(name, content))
        for name, content in lines.items()
    }
    batch: Batch = make_batch(
        state="completed", num_requests=4, num_completed=3, num_failed=1, input_tokens=30, cached_tokens=3,
        output_tokens=60, cost_picos=150, output_file_id=made["out"].id, error_file_id=made["err"].id,
    )  # fmt: skip
    for first_line, flush_no in ((0, 1), (2, 2)):
        chunk = Chunk(
            batch_id=batch.id, tenant_id=batch.tenant_id, model="m", priority="normal", expires_at=batch.expires_at,
            first_line=first_line, num_lines=2, num_requests=2, byte_start=0, byte_end=9, estimated_tokens=9,
            state="done",
        )  # fmt: skip
        session.add(chunk)
        session.flush()
        session.add(ledger(batch, chunk.id, flush_no))
    for line_no in range(4):
        session.add(result(batch, line_no))
    budgets.settle(session, batch.id, batch.tenant_id, 90)
    session.commit()
    return batch


def ledger(batch: Batch, chunk_id: int, flush_no: int) -> Ledger:
    return Ledger(
        tenant_id=batch.tenant_id, batch_id=batch.id, chunk_id=chunk_id, fence=1, flush_no=flush_no, model="m",
        num_results=2, input_tokens=20 if flush_no == 1 else 10, cached_tokens=2 if flush_no == 1 else 1,
        output_tokens=40 if flush_no == 1 else 20,
        cost_picos=100 if flush_no == 1 else 50, input_price_picos=1, output_price_picos=2,
        priority="normal", num_truncated=0,
    )  # fmt: skip


def result(batch: Batch, line_no: int, **columns: Any) -> Result:
    failed = line_no == 3
    values: dict[str, Any] = {
        "batch_day": batch_day(batch.created_at), "batch_id": batch.id, "line_no": line_no, "result_no": line_no + 1,
        "status_code": 400 if failed else 200, "is_error": failed, "input_tokens": 0 if failed else 10,
        "cached_tokens": 0 if failed else 1, "output_tokens": 0 if failed else 20, "line": b"{}",
    }  # fmt: skip
    return Result(**values | columns)


def messages(maker: sessionmaker[Session], storage: Storage | None = None) -> list[str]:
    with maker() as fresh:
        return [finding.message for finding in audit(fresh, storage=storage)]


def test_clean_data_has_no_findings(maker: sessionmaker[Session], storage: Storage, batch: Batch) -> None:
    assert messages(maker, storage) == []
    with maker() as fresh:
        assert audit(fresh, batch_id=batch.id, storage=storage) == []


def test_live_work_has_no_findings(session: Session, maker: sessionmaker[Session], make_batch: Make) -> None:
    make_batch(state="in_progress", num_requests=5, reserved_tokens=100)
    make_batch(state="validating", reserved_tokens=70)
    assert messages(maker) == []


def test_a_live_batch_whose_input_the_store_has_lost_is_found(
    maker: sessionmaker[Session], storage: Storage, make_batch: Make, make_file: Make
) -> None:
    inputs = [make_file(object_key=name, size_bytes=8) for name in ("there", "lost", "short", "read")]
    for file, state in zip(inputs, ("in_progress", "validating", "cancelling", "failed"), strict=True):
        make_batch(state=state, input_file_id=file.id)
    storage.put("there", b"8 bytes\n")
    storage.put("short", b"7 bytes")
    assert sorted(messages(maker, storage)) == sorted(
        [
            f"the input file {inputs[1].id} has no object in the store",
            f"the input file {inputs[2].id} has 7 bytes and its row says 8",
        ]
    )
    assert messages(maker) == [], "without a store nobody looks"


# What is broken, and the words expected in the finding.
BREAKS = {
    "a missing result": (
        "DELETE FROM result WHERE line_no = 0",
        [
            "1 of 4 lines have no result and the batch is completed",
            "the newest of 3 results has number 4",
            "counts num_completed 3 and its results give 2",
            "counts input_tokens 30 and its results give 20",
            "the ledger has output_tokens 60 and the results give 40",
            "the ledger bills 4 results and there are 3",
            "is done with 1 result for 2 requests",
        ],
    ),
    "a result too many": (
        "INSERT INTO result SELECT batch_day, batch_id, 9, 5, 200, FALSE, 0, 0, 0, line FROM result WHERE line_no = 0",
        [
            "there are 5 results for 4 lines",
            "counts num_completed 3 and its results give 4",
            "line 10 has an answer that is not billed",
        ],
    ),
    "a line filed under two days": (
        "INSERT INTO result SELECT batch_day - 1, batch_id, 0, 5, 200, FALSE, 0, 0, 0, line "
        "FROM result WHERE line_no = 0",
        ["line 1 has 2 results filed under 2 days", "there are 5 results for 4 lines"],
    ),
    "a wrong counter": (
        "UPDATE batch SET num_failed = 2",
        ["counts num_failed 2 and its results give 1", "the error file has 1 line and the batch counts 2"],
    ),
    "wrong time of workers": (
        "UPDATE ledger SET worker_microseconds = 3 WHERE flush_no = 1",
        ["the ledger has worker_microseconds 3 and the batch 0"],
    ),
    "wrong tokens": ("UPDATE batch SET cached_tokens = 4", ["counts cached_tokens 4 and its results give 3"]),
    "billed twice": (
        "INSERT INTO ledger (tenant_id, batch_id, chunk_id, fence, flush_no, model, num_results, input_tokens, "
        "cached_tokens, output_tokens, cost_picos, input_price_picos, output_price_picos, priority, num_truncated) "
        "SELECT tenant_id, batch_id, chunk_id, 2, 1, model, num_results, input_tokens, cached_tokens, output_tokens, "
        "cost_picos, input_price_picos, output_price_picos, priority, num_truncated FROM ledger WHERE flush_no = 1",
        [
            "the ledger has input_tokens 50 and the results give 30",
            "the ledger has cost_picos 250 and the batch 150",
            "the ledger bills 6 results and there are 4",
            "the budget has 90 tokens spent and the ledger 150",
        ],
    ),
    "not billed": (
        "DELETE FROM ledger WHERE flush_no = 1",
        ["the ledger has output_tokens 20 and the results give 60", "90 tokens spent and the ledger 30"],
    ),
    "a wrong cost": (
        "UPDATE ledger SET cost_picos = cost_picos + CASE WHEN flush_no = 1 THEN 5 ELSE -5 END",
        ["2 ledger entries have cost_picos 150 and their tokens at their prices give 150"],
    ),
    "a wrong bill": ("UPDATE batch SET cost_picos = 151", ["the ledger has cost_picos 150 and the batch 151"]),
    "spent from nowhere": ("UPDATE budget SET spent_tokens = 91", ["the budget has 91 tokens spent and the ledger 90"]),
    "more than the limit": (
        "UPDATE budget SET limit_tokens = 80",
        ["the budget has 90 tokens spent and 0 reserved, and its limit is 80; 0 were committed before it"],
    ),
    "cover from nowhere": (
        "UPDATE chunk SET covered_tokens = 5 WHERE first_line = 0",
        ["the batch covers 0 tokens and its chunks cover 5"],
    ),
    "cover beyond the reservation": (
        "UPDATE batch SET covered_tokens = 4",
        ["the batch covers 4 tokens and its chunks cover 0", "the batch covers 4 tokens and reserves 0"],
    ),
    "reserved from nowhere": (
        "UPDATE budget SET reserved_tokens = 5",
        ["the budget reserves 5 tokens and its batches reserve 0"],
    ),
    "a reservation never released": (
        "UPDATE batch SET reserved_tokens = 5",
        ["the batch is completed and still reserves 5 tokens", "reserves 0 tokens and its batches reserve 5"],
    ),
    "an open chunk of an ended batch": (
        "UPDATE chunk SET state = 'ready' WHERE first_line = 2",
        ["the batch is completed and 1 of its chunks are open"],
    ),
    "chunks that overlap": (
        "UPDATE chunk SET first_line = 1 WHERE first_line = 2",
        ["begins at line 2, which an earlier chunk covers already"],
    ),
    "no output file": (
        "UPDATE batch SET output_file_id = NULL",
        ["the batch is completed and has no output file for 3 lines"],
    ),
    "files changed round": (
        "UPDATE batch SET output_file_id = error_file_id, error_file_id = output_file_id",
        ["the output file has 1 line and the batch counts 3", "the error file has 3 lines and the batch counts 1"],
    ),
    "a wrong size": (
        "UPDATE file SET size_bytes = 7 WHERE object_key = 'out'",
        ["the output file has 24 bytes and its row says 7"],
    ),
    "a missing object": (
        "UPDATE file SET object_key = 'nowhere' WHERE object_key = 'out'",
        ["has no object in the store"],
    ),
}


def unbill(session: Session, *line_nos: int) -> None:
    """Remove lines from everything that counts and bills their tokens, but keep their answers."""
    lines = {"line_nos": list(line_nos)}
    for table, is_one in (("batch", ""), ("ledger", "WHERE flush_no = 2")):
        session.execute(
            text(f"""
                UPDATE {table} SET input_tokens = {table}.input_tokens - gone.input,
                    cached_tokens = {table}.cached_tokens - gone.cached,
                    output_tokens = {table}.output_tokens - gone.output,
                    cost_picos = {table}.cost_picos - gone.input - 2 * gone.output
                FROM (
                    SELECT sum(input_tokens) AS input, sum(cached_tokens) AS cached, sum(output_tokens) AS output
                    FROM result WHERE line_no = ANY(:line_nos)
                ) AS gone {is_one}
            """),
            lines,
        )
    session.execute(
        text("""
            UPDATE budget SET spent_tokens = spent_tokens
                - (SELECT sum(input_tokens + output_tokens) FROM result WHERE line_no = ANY(:line_nos))
        """),
        lines,
    )
    session.execute(
        text("""
            UPDATE result SET input_tokens = 0, cached_tokens = 0, output_tokens = 0 WHERE line_no = ANY(:line_nos)
        """),
        lines,
    )


def copy(session: Session, *pairs: int) -> None:
    session.execute(text("UPDATE chunk SET copies = :pairs WHERE first_line = 2"), {"pairs": list(pairs)})


@pytest.mark.changes_schema
def test_an_answer_that_is_no_copy_and_not_billed_is_found(maker: sessionmaker[Session], batch: Batch) -> None:
    with maker.begin() as session:
        unbill(session, 2)
    assert messages(maker) == ["line 3 has an answer that is not billed, and is a copy of no line"]
    with maker() as fresh:
        assert [finding.subject for finding in audit(fresh, batch_id=batch.id)] == [batch.id]


@pytest.mark.changes_schema
def test_answers_that_are_not_billed_are_not_read_all_at_once(maker: sessionmaker[Session], batch: Batch) -> None:
    with maker.begin() as session:
        unbill(session, 2)
    with maker() as session:
        found = unbilled.find(session, batch_id=batch.id, days=partition_days(session))
        assert next(found).line_no == 2
        assert session.scalar(text("SELECT count(*) FROM pg_cursors")) == 1


@pytest.mark.changes_schema
def test_a_copy_of_a_line_that_is_billed_is_right_and_so_is_one_that_ran_itself(
    maker: sessionmaker[Session], batch: Batch
) -> None:
    with maker.begin() as session:
        copy(session, 2, 0)
    assert messages(maker) == []
    with maker.begin() as session:
        unbill(session, 2)
    assert messages(maker) == []


@pytest.mark.parametrize("original", [3, 4])
@pytest.mark.changes_schema
def test_a_copy_of_a_line_that_failed_or_has_no_result_is_found_unless_another_copy_ran_itself(
    maker: sessionmaker[Session], batch: Batch, original: int
) -> None:
    with maker.begin() as session:
        copy(session, 2, original)
        unbill(session, 2)
    (found,) = messages(maker)
    assert found == (
        f"line 3 has an answer that is not billed, and is a copy of line {original + 1}, which has no billed answer, "
        "nor has another copy of it"
    )
    with maker.begin() as session:
        session.execute(text("UPDATE chunk SET copies = :pairs WHERE first_line = 0"), {"pairs": [1, original]})
    assert messages(maker) == []


@pytest.mark.parametrize("broken", list(BREAKS))
def test_each_break_is_found_and_nothing_else(
    maker: sessionmaker[Session], storage: Storage, batch: Batch, broken: str
) -> None:
    statement, expected = BREAKS[broken]
    with maker.begin() as session:
        session.execute(text(statement))
    found = messages(maker, storage)
    for words in expected:
        assert any(words in message for message in found), found
    if broken not in {"a missing result", "a line filed under two days", "billed twice", "not billed"}:
        assert len(found) == len(expected), found


def test_one_batch_can_be_checked_alone(
    session: Session, maker: sessionmaker[Session], batch: Batch, make_batch: Make
) -> None:
    other = make_batch(state="completed", num_requests=2)
    with maker() as fresh:
        assert audit(fresh, batch_id=batch.id) == []
    with maker() as fresh:
        assert [finding.subject for finding in audit(fresh, batch_id=other.id)] == [other.id]


def test_an_unknown_batch_is_not_found(maker: sessionmaker[Session]) -> None:
    with maker() as fresh, pytest.raises(NotFoundError, match="batch_nowhere"):
        audit(fresh, batch_id="batch_nowhere")


def test_results_whose_retention_has_ended_are_not_missed(
    maker: sessionmaker[Session], storage: Storage, batch: Batch
) -> None:
    purging.drop_days(maker, retention=timedelta(days=-1))
    assert messages(maker, storage) == []


def test_a_deleted_output_file_is_not_missed(maker: sessionmaker[Session], storage: Storage, batch: Batch) -> None:
    storage.delete("out")
    with maker.begin() as session:
        session.execute(text("UPDATE file SET deleted_at = now() WHERE object_key = 'out'"))
    assert messages(maker, storage) == []


def test_results_that_were_deleted_are_not_missed_and_their_bill_is_still_checked(
    maker: sessionmaker[Session], batch: Batch
) -> None:
    with maker.begin() as session:
        deletion.delete_batch(session, batch.tenant_id, batch.id, by="key_1")
    assert messages(maker) == [], "shown to nobody, and there"
    assert purging.purge_results(maker, retention=timedelta(days=30)) == 1
    assert messages(maker) == []
    with maker.begin() as session:
        session.execute(text("UPDATE ledger SET output_tokens = output_tokens + 1"))
    assert any("output_tokens" in message for message in messages(maker))


def test_work_that_commits_meanwhile_makes_no_false_finding(
    maker: sessionmaker[Session], batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that commits between two of the audit's queries must not appear as a difference."""
    from jobs.audit import budgets as audited

    plain = audited.token_budgets

    def commit_first(session: Session) -> Any:
        with maker.begin() as other:
            other.execute(text("UPDATE budget SET spent_tokens = spent_tokens + 5"))
        return plain(session)

    monkeypatch.setattr(audited, "token_budgets", commit_first)
    assert messages(maker) == []
