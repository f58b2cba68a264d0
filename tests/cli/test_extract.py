"""Tests of `tokenmill extract` against a server, from files to records, and of refusals before any request."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cli.extracting.known import read_known
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passes.examples import FROM_AN_EXAMPLE
from jobs.chunks.recording import LineResult
from jobs.errors import ConflictError, InputError
from lab.extraction.pdf_writer import PdfPage, Words, write_pdf
from tests.cli.killed import wait_for
from tests.cli.service import ROOT, Service, chatted, failed, run

pytestmark = pytest.mark.long

SCHEMA = {
    "type": "object",
    "properties": {
        "vendor": {"type": "string"},
        "total": {"type": "number", "x-tokenmill": {"metric": "money"}},
    },
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a schema and `in/`: a text, a PDF, a mail, and a file that is none of them."""
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    files = tmp_path / "in"
    files.mkdir()
    (files / "a.txt").write_text("Invoice of Ash Ltd\nTotal: 1,234.50 EUR\n")
    words = (Words(x=56, y=70, text="Birch GmbH"), Words(x=56, y=90, text="Total 20.00"))
    (files / "b.pdf").write_bytes(write_pdf([PdfPage(words=words)]))
    (files / "c.eml").write_text("From: office@example.org\nSubject: Receipt\n\nCedar Inc, total 7.00\n")
    (files / "d.pdf").write_bytes(b"%PDF-1.7\nnothing")
    return tmp_path


def arguments(folder: Path, *more: str) -> list[str]:
    named = ["--schema", str(folder / "schema.json"), "--data-dir", str(folder / "d")]
    return ["extract", str(folder / "in"), "-o", str(folder / "fields.jsonl"), *named, *more]


def started(service: Service, folder: Path, *more: str) -> subprocess.Popen[str]:
    return service.start(*arguments(folder, *more))


def said(value: Any, quote: str) -> dict[str, Any]:
    return {"value": value, "quote": quote}


def answered(line_no: int, document: int, fields: dict[str, Any]) -> LineResult:
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}
    return chatted(line_no, f"document-{document}-group-0", json.dumps(fields), usage=usage)


def refused(line_no: int, document: int) -> LineResult:
    return failed(line_no, f"document-{document}-group-0", code="engine_failure")


FIRST = [
    answered(0, 0, {"vendor": said("Ash Ltd", "of Ash Ltd"), "total": said(1234.5, "1,234.50 EUR")}),
    answered(1, 1, {"vendor": said("Willow Co", "Willow Co"), "total": said(20, "Total 20.00")}),
    refused(2, 2),
]
SECOND = [answered(0, 1, {"vendor": said("Birch GmbH", "Birch GmbH")})]


def test_documents_become_records_after_a_kill_between_their_batches_too(service: Service, folder: Path) -> None:
    before = len(service.batches())
    more = ("--parquet", str(folder / "fields.parquet"), "--report", str(folder / "report.html"))
    with started(service, folder, *more) as process:
        wait_for(lambda: len(service.batches()) > before, process)
        process.kill()
    service.work_off(service.batches()[0]["id"], FIRST)
    with started(service, folder, *more, "--fail-on-errors") as process:
        wait_for(lambda: len(service.batches()) > before + 1, process)
        service.work_off(service.batches()[0]["id"], SECOND)
        told = process.communicate(timeout=120)[1]
    assert process.returncode == 3, told
    assert "2 of 4 documents done" in told
    assert "2 failed: engine_failure 1, truncated 1" in told
    assert len(service.batches()) == before + 2
    records = [json.loads(line) for line in (folder / "fields.jsonl").read_text().splitlines()]
    assert [Path(record["document"]).name for record in records] == ["a.txt", "b.pdf", "c.eml", "d.pdf"]
    assert [record["fields"] for record in records] == [
        {"vendor": "Ash Ltd", "total": 1234.5},
        {"vendor": "Birch GmbH", "total": 20},  # values that were not in the text were asked again
        None,
        None,
    ]
    assert [record["error"] and record["error"]["code"] for record in records][2] == "engine_failure"
    vendor = records[1]["evidence"][0]
    assert (vendor["grounding"], vendor["spans"][0]["page"], len(vendor["spans"][0]["box"])) == ("exact", 0, 4)
    rows = pq.read_table(folder / "fields.parquet").to_pylist()
    assert [(row["vendor"], row["total"]) for row in rows] == [
        ("Ash Ltd", 1234.5),
        ("Birch GmbH", 20.0),
        (None, None),
        (None, None),
    ]
    assert rows[2]["error"] == "it went wrong (engine_failure)"
    assert "Birch GmbH" in (folder / "report.html").read_text()
    for given, status in (([], 0), (["--fail-on-errors"], 3)):
        again = service.run(*arguments(folder, *more, *given))
        assert (again.exit_code, "is already complete" in again.stderr) == (status, True)


LISTED = [
    answered(0, 0, {"values": [{"kind": "money", "value": "1,234.50", "quote": "1,234.50 EUR"}]}),
    answered(1, 1, {"values": [{"kind": "text", "value": "Birch GmbH", "quote": "Birch GmbH"}]}),
    refused(2, 2),
]


def test_a_second_reading_is_a_batch_of_its_own_and_tells_of_each_value(service: Service, folder: Path) -> None:
    before = len(service.batches())
    birch = answered(1, 1, {"vendor": said("Birch GmbH", "Birch GmbH"), "total": said(20, "Total 20.00")})
    with started(service, folder, "--second-reading", "--no-again") as process:
        for count, results in enumerate(([FIRST[0], birch, FIRST[2]], LISTED)):
            wait_for(lambda: len(service.batches()) > before + count, process)  # noqa: B023
            service.work_off(service.batches()[0]["id"], results)
        told = process.communicate(timeout=120)[1]
    assert process.returncode == 0, told
    records = [json.loads(line) for line in (folder / "fields.jsonl").read_text().splitlines()]
    agreements = [{each["path"]: each["features"]["agreement"] for each in one["evidence"]} for one in records[:2]]
    assert agreements == [{"vendor": "silent", "total": "agrees"}, {"vendor": "agrees", "total": "silent"}]
    assert records[0]["usage"] == {"input_tokens": 4, "cached_tokens": 2, "output_tokens": 6}
    assert "tokens 8 in, 50.0% of them from the prefix cache; 12 out" in told


def test_with_a_cover_what_was_found_is_asked_once_more_without_its_place(service: Service, folder: Path) -> None:
    before = len(service.batches())
    birch = answered(1, 1, {"vendor": said("Birch GmbH", "Birch GmbH"), "total": said(20, "Total 20.00")})
    behind = answered(0, 0, {"vendor": None, "total": None})
    other = answered(1, 1, {"vendor": None, "total": said(20, "Total 20.00")})
    with started(service, folder, "--cover", "--no-again") as process:
        for count, results in enumerate(([FIRST[0], birch, FIRST[2]], [behind, other])):
            wait_for(lambda: len(service.batches()) > before + count, process)  # noqa: B023
            service.work_off(service.batches()[0]["id"], results)
        told = process.communicate(timeout=120)[1]
    assert process.returncode == 0, told
    records = [json.loads(line) for line in (folder / "fields.jsonl").read_text().splitlines()]
    covered = [{each["path"]: each["features"]["covered"] for each in one["evidence"]} for one in records[:2]]
    assert covered == [{"vendor": "nothing", "total": "nothing"}, {"vendor": "nothing", "total": "same"}]
    assert records[0]["usage"]["input_tokens"] == 4


def test_a_batch_that_was_cancelled_leaves_its_results_and_the_rest_runs_again(service: Service, folder: Path) -> None:
    before = len(service.batches())
    with started(service, folder) as process:
        wait_for(lambda: len(service.batches()) > before, process)
        service.cancel(service.batches()[0]["id"], [FIRST[0], FIRST[2]])
        told = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert "the batch ended as cancelled. Results of 2 lines are kept; the same command submits the others." in told
    with started(service, folder) as process:
        wait_for(lambda: len(service.batches()) > before + 1, process)
        fields = {"vendor": said("Birch GmbH", "Birch GmbH"), "total": said(20, "Total 20.00")}
        service.work_off(service.batches()[0]["id"], [answered(0, 1, fields)])
        told = process.communicate(timeout=120)[1]
    assert (process.returncode, "2 lines with results from an earlier batch" in told) == (0, True)
    records = [json.loads(line) for line in (folder / "fields.jsonl").read_text().splitlines()]
    assert [record["fields"] and record["fields"]["vendor"] for record in records] == [
        "Ash Ltd",
        "Birch GmbH",
        None,
        None,
    ]
    assert [path.name for path in folder.glob("d/runs/*/*")] == ["state.json"]


def test_the_same_command_given_twice_runs_once_and_says_what_goes_on_when_it_is_stopped(
    service: Service, folder: Path
) -> None:
    before = len(service.batches())
    with started(service, folder) as process:
        wait_for(lambda: len(service.batches()) > before, process)
        with pytest.raises(ConflictError, match=rf"^the same command already runs \(pid {process.pid}\)\."):
            service.run(*arguments(folder))
        batch_id = service.batches()[0]["id"]
        wait_for(lambda: any(batch_id in path.read_text() for path in folder.glob("d/runs/*/*/state.json")), process)
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert f"{batch_id} continues. The same command waits for it again; or: tokenmill batch cancel {batch_id}" in told
    assert len(service.batches()) == before + 1


def test_a_schema_that_no_grammar_can_keep_is_refused_before_anything_is_started(folder: Path) -> None:
    fields = {"code": {"type": "string"}, "vendor": {"type": "string", "pattern": "(?=a)b"}}
    (folder / "schema.json").write_text(json.dumps({"type": "object", "properties": fields}))
    given = ("--model", str(ROOT / "examples" / "demo_model"), "--max-fields", "1")
    with pytest.raises(InputError, match="the schema cannot be enforced: "):
        run(*arguments(folder, *given), TOKENMILL_BASE_URL="")
    assert not (folder / "d").exists()


def known(folder: Path) -> Path:
    """Write two documents whose fields are known, and return the gold file."""
    (folder / "zebra.txt").write_text("Invoice of Zebra Ltd\nTotal: 42.00 EUR\n")
    (folder / "yak.eml").write_text("From: office@example.org\nSubject: Receipt\n\nYak Inc, total 8.00\n")
    fields = {"zebra.txt": {"vendor": "Zebra Ltd", "total": 42.0}, "yak.eml": {"vendor": "Yak Inc", "total": 8.0}}
    lines = [json.dumps({"document": str(folder / name), "fields": gold}) for name, gold in fields.items()]
    path = folder / "gold.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_no_value_of_an_example_ever_comes_out(service: Service, folder: Path) -> None:
    before = len(service.batches())
    copied = answered(0, 0, {"vendor": said("Zebra Ltd", "Zebra Ltd"), "total": said(1234.5, "1,234.50 EUR")})
    own = answered(1, 1, {"vendor": said("Birch GmbH", "Birch GmbH"), "total": said(42.0, "Total: 42.00 EUR")})
    with started(service, folder, "--examples", str(known(folder)), "--no-again") as process:
        wait_for(lambda: len(service.batches()) > before, process)
        service.work_off(service.batches()[0]["id"], [copied, own, refused(2, 2)])
        told = process.communicate(timeout=120)[1]
    assert process.returncode == 0, told
    records = [json.loads(line) for line in (folder / "fields.jsonl").read_text().splitlines()]
    assert [record["fields"] for record in records[:2]] == [
        {"vendor": None, "total": 1234.5},
        {"vendor": "Birch GmbH", "total": None},
    ]
    copied_value = records[0]["evidence"][0]
    assert (copied_value["answer"], copied_value["note"]) == ("Zebra Ltd", "not_in_document")
    assert FROM_AN_EXAMPLE in copied_value["reasons"]


def test_a_prompt_shows_known_documents_and_never_the_document_itself(service: Service, folder: Path) -> None:
    service.worker_lives()
    gold = known(folder)
    with service.counting(tokens=7):
        told = service.run(*arguments(folder, "--dry-run", "--max-tokens", "32", "--examples", str(gold)))
    assert told.exit_code == 0, told.stderr
    assert "<example>\nInvoice of Zebra Ltd" in told.stdout
    (folder / "in" / "a.txt").write_text((folder / "zebra.txt").read_text())
    with service.counting(tokens=7):
        told = service.run(*arguments(folder, "--dry-run", "--max-tokens", "32", "--examples", str(gold)))
    assert "<example>\nInvoice of Zebra Ltd" not in told.stdout
    assert "Yak Inc" in told.stdout


def test_a_line_of_gold_ends_where_json_lines_do(tmp_path: Path) -> None:
    fields = {"vendor": "Ash\u2028Ltd"}
    gold = tmp_path / "gold.jsonl"
    gold.write_text(json.dumps({"document": "a.pdf", "fields": fields}, ensure_ascii=False) + "\n", encoding="utf-8")
    schema = FieldSchema.parse({"type": "object", "properties": {"vendor": {"type": "string"}}})
    assert read_known(gold, schema)["a.pdf"].fields == fields


def test_an_example_that_is_gone_is_refused_by_its_name(service: Service, folder: Path) -> None:
    gold = known(folder)
    (folder / "yak.eml").unlink()
    with pytest.raises(InputError, match=r"gold.jsonl names .*yak.eml, which is not a file here"):
        run(*arguments(folder, "--examples", str(gold)))


def test_an_example_is_one_file_whatever_ids_its_lines_have(folder: Path) -> None:
    line = {"document": str(folder / "zebra.txt"), "fields": {"vendor": "Zebra Ltd"}}
    gold = known(folder)
    gold.write_text("\n".join(json.dumps(line | {"document_id": f"document_{number}"}) for number in range(2)))
    with pytest.raises(InputError, match=r"gold.jsonl has 2 lines for the file .*zebra.txt"):
        run(*arguments(folder, "--examples", str(gold)))


def test_a_dry_run_shows_what_a_document_is_asked_and_submits_nothing(service: Service, folder: Path) -> None:
    service.worker_lives()
    before = len(service.batches())
    with service.counting(tokens=7):
        result = service.run(*arguments(folder, "--dry-run", "--max-tokens", "32", "--second-reading", "--cover"))
    assert result.exit_code == 0, result.stderr
    assert "- vendor: text" in result.stdout
    assert "<document>\nInvoice of Ash Ltd" in result.stdout
    assert re.search(r"^documents +4$", result.stdout, re.MULTILINE)
    for name in ("tokens", "first questions", "second reading", "covered", "further questions"):
        assert re.search(rf"^{name} +likely [\d,]+ \([\d,]+ in, [\d,]+ out\)", result.stdout, re.MULTILINE)
    assert len(service.batches()) == before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"schema": {"type": "object", "properties": {}}}, "without `properties` asks for nothing"),
        ({"schema": {"type": "object", "properties": {"a": {"type": "string", "not": {}}}}}, "a"),
        ({"schema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}}, "regular expression"),
        ({"more": ["--param", "messages=[]"]}, "--param cannot set messages"),
        ({"more": ["--param", "max_tokens=null"]}, "max_tokens is null, which is no bound .* from 16 to 1,000,000, or"),
        ({"more": ["--param", 'max_tokens="many"']}, 'max_tokens is "many"'),
        ({"more": ["--param", "max_tokens=15"]}, "max_tokens is 15"),
        ({"more": ["--param", f"max_tokens={10**30}"]}, "max_tokens is 1000"),
        ({"more": ["--param", "max_completion_tokens=90"]}, "is called max_tokens here"),
        ({"more": ["--parquet", "fields.jsonl"]}, "two outputs have the same path"),
        ({"source": "nowhere"}, "no such file or folder"),
        ({"source": "documents"}, "documents: no such file or folder"),
        ({"source": "in/*.xyz"}, "no file matches it"),
        ({"output": "in/a.txt"}, "is one of the documents"),
        ({"output": "schema.json"}, "is the schema"),
        ({"output": "in/fields.jsonl"}, "would be a document of in at the next start"),
        ({"source": "in/*.*", "output": "in/fields.jsonl"}, r"would be a document of in/\*\.\*"),
        ({"more": ["--report", "in/deep.html"]}, "would be a document of in"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], says: str
) -> None:
    monkeypatch.chdir(folder)
    (folder / "schema.json").write_text(json.dumps(given.get("schema", SCHEMA)))
    named = ["--schema", "schema.json", "-o", given.get("output", "fields.jsonl"), "--data-dir", "d"]
    with pytest.raises(InputError, match=says):
        run("extract", given.get("source", "in"), *named, *given.get("more", []))
    assert not (folder / "d").exists()


def test_a_pdf_without_text_fails_without_any_field(service: Service, folder: Path) -> None:
    before = len(service.batches())
    (folder / "scan").mkdir()
    (folder / "scan" / "scan.pdf").write_bytes(write_pdf([PdfPage(), PdfPage()]))
    outputs = ("-o", str(folder / "fields.jsonl"), "--parquet", str(folder / "fields.parquet"))
    schema = ("--schema", str(folder / "schema.json"), "--data-dir", str(folder / "d"))
    service.worker_lives()
    told = service.run("extract", str(folder / "scan"), *schema, *outputs)
    assert (told.exit_code, len(service.batches())) == (1, before), told.stderr
    record = json.loads((folder / "fields.jsonl").read_text())
    assert (record["status"], record["error"]["code"], record["fields"]) == ("failed", "no_text", None)
    assert "`ocr`" in record["error"]["message"]
    (row,) = pq.read_table(folder / "fields.parquet").to_pylist()
    assert (row["review"], row["score"], row["vendor"], row["total"]) == (True, None, None, None)
    assert row["error"].endswith("(no_text)")


def test_without_an_output_it_says_how_to_look_first(folder: Path) -> None:
    with pytest.raises(InputError, match="--dry-run"):
        run("extract", str(folder / "in"), "--schema", str(folder / "schema.json"))
