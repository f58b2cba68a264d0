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
from jobs.errors import ConflictError, InputError
from lab.extraction.pdf_writer import PdfPage, Words, write_pdf
from tests.cli.extracting_service import ExtractingService
from tests.cli.killed import wait_for
from tests.cli.service import ROOT, Service, run
from tests.forked.commands import program_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(120), pytest.mark.usefixtures("quick_processes")]

SCHEMA = {
    "type": "object",
    "properties": {"vendor": {"type": "string"}, "total": {"type": "number", "x-tokenmill": {"metric": "money"}}},
}
FIELDS = [
    {"vendor": "Ash Ltd", "total": 1234.5},
    {"vendor": "Birch FLAKY GmbH", "total": 20},  # the vendor is found when it is asked again
    None,
    None,
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a schema and `in/`: a text, a PDF, a mail that no model answers, and a broken file."""
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    files = tmp_path / "in"
    files.mkdir()
    (files / "a.txt").write_text("Invoice\nvendor: Ash Ltd\ntotal: 1234.5\n")
    words = (Words(x=56, y=70, text="vendor: Birch FLAKY GmbH"), Words(x=56, y=90, text="total: 20"))
    (files / "b.pdf").write_bytes(write_pdf([PdfPage(words=words)]))
    (files / "c.eml").write_text("From: office@example.org\nSubject: Receipt\n\nCRASH\n")
    (files / "d.pdf").write_bytes(b"%PDF-1.7\nnothing")
    return tmp_path


def arguments(folder: Path, *more: str | Path) -> list[str]:
    named = ["--schema", folder / "schema.json", "--data-dir", folder / "d"]
    return list(map(str, ["extract", folder / "in", "-o", folder / "fields.jsonl", *named, *more]))


def started(service: Service, folder: Path, *more: str | Path) -> subprocess.Popen[str]:
    return service.start(*arguments(folder, *more))


def extracted(extracting: ExtractingService, folder: Path, *more: str | Path) -> Any:
    """Run the command to its end; return its result."""
    with extracting.working():
        return extracting.service.run(*arguments(folder, *more))


def records_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "fields.jsonl").read_text().splitlines()]


def is_nothing_stored(extracting: ExtractingService) -> bool:
    return not any(extracting.stored().values())


def test_documents_become_records_a_table_and_a_report_and_nothing_stays_at_the_server(
    extracting: ExtractingService, folder: Path
) -> None:
    more = ("--parquet", folder / "fields.parquet", "--report", folder / "report.html")
    told = extracted(extracting, folder, *more, "--fail-on-errors")
    assert told.exit_code == 3, told.stderr
    assert "2 of 4 documents done" in told.stderr
    assert "2 failed: failed 1, truncated 1" in told.stderr
    records = records_of(folder)
    assert [record["document"] for record in records] == [str(path) for path in sorted((folder / "in").iterdir())]
    assert [record["fields"] for record in records] == FIELDS
    assert [record["error"] and record["error"]["code"] for record in records] == [None, None, "failed", "truncated"]
    assert all(len(record["sha256"]) == 64 for record in records)
    vendor = records[1]["evidence"][0]
    assert (vendor["grounding"], vendor["spans"][0]["page"], len(vendor["spans"][0]["box"])) == ("exact", 0, 4)
    rows = pq.read_table(folder / "fields.parquet").to_pylist()
    assert [(row["vendor"], row["total"]) for row in rows] == [
        *(("Ash Ltd", 1234.5), ("Birch FLAKY GmbH", 20.0), (None, None), (None, None))
    ]
    assert rows[2]["error"].endswith("(failed)")
    report = (folder / "report.html").read_text()
    assert "Birch FLAKY GmbH" in report
    assert "Invoice" in report, "the text of a document"
    assert is_nothing_stored(extracting)
    for given, status in (([], 0), (["--fail-on-errors"], 3)):
        again = run(*arguments(folder, *more, *given), **extracting.service.variables)
        assert (again.exit_code, "is already complete" in again.stderr) == (status, True)


def test_passes_and_further_fields_are_those_of_the_command(extracting: ExtractingService, folder: Path) -> None:
    before = len(extracting.answering.asked)
    passes = ("--second-reading", "--cover", "--no-again", "--no-quotes", "--max-tokens", "64")
    told = extracted(extracting, folder, *passes, "--param", "seed=7", "--no-logprobs", "--max-fields", "1", "--keep")
    assert told.exit_code == 0, told.stderr
    stored = extracting.stored()
    (made,) = stored["extractions"]
    assert [made[name] for name in ("quotes", "again", "second_reading", "cover")] == [False, False, True, True]
    asked = extracting.answering.asked[before:]
    fields = ("seed", "temperature", "max_tokens", "logprobs")
    assert {tuple(body[name] for name in fields) for body in asked} == {(7, 0.0, 64, False)}
    assert records_of(folder)[0]["usage"]["input_tokens"] == 6 * 7, "two fields, each read twice and asked covered"
    assert (len(stored["collections"]), len(stored["files"]) > 4) == (1, True)
    (folder / "fields.jsonl").unlink()
    again = run(*arguments(folder, *passes, "--param", "seed=7", "--no-logprobs", "--max-fields", "1"),
                **extracting.service.variables)  # fmt: skip
    assert again.exit_code == 0, again.stderr
    assert len(records_of(folder)) == 4, "of the extraction that was kept"
    assert is_nothing_stored(extracting)


def test_after_a_kill_the_same_command_waits_for_the_same_extraction(
    extracting: ExtractingService, folder: Path
) -> None:
    with started(extracting.service, folder) as process:
        wait_for(lambda: bool(extracting.stored()["extractions"]), process)
        process.kill()
    (made,) = extracting.stored()["extractions"]
    with started(extracting.service, folder) as process, extracting.working():
        told = process.communicate(timeout=120)[1]
    assert process.returncode == 0, told
    assert [record["fields"] for record in records_of(folder)] == FIELDS
    assert "continues" not in told
    assert made["id"] not in json.dumps(extracting.stored())


def test_a_cancelled_extraction_has_no_output_and_the_same_command_begins_anew(
    extracting: ExtractingService, folder: Path
) -> None:
    with started(extracting.service, folder) as process, extracting.working():
        wait_for(lambda: bool(extracting.stored()["extractions"]), process)
        extracting.service.run("extractions", "cancel", extracting.stored()["extractions"][0]["id"])
        told = process.communicate(timeout=120)[1]
    assert process.returncode == 1, told
    assert "the extraction is cancelled" in told
    assert not (folder / "fields.jsonl").exists()
    assert is_nothing_stored(extracting)
    assert extracted(extracting, folder).exit_code == 0
    assert [record["fields"] for record in records_of(folder)] == FIELDS


def test_what_the_server_refuses_leaves_nothing_there(extracting: ExtractingService, folder: Path) -> None:
    with pytest.raises(InputError, match="top_p"):
        extracting.service.run(*arguments(folder, "--param", "top_p=7"))
    assert is_nothing_stored(extracting)
    assert not list(folder.glob("d/runs/*"))


def test_the_same_command_given_twice_runs_once_and_says_what_goes_on_when_it_is_stopped(
    extracting: ExtractingService, folder: Path
) -> None:
    with started(extracting.service, folder) as process:
        wait_for(lambda: bool(extracting.stored()["extractions"]), process)
        with pytest.raises(ConflictError, match=rf"^the same command already runs \(pid {program_of(process.pid)}\)\."):
            extracting.service.run(*arguments(folder))
        (made,) = extracting.stored()["extractions"]
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert f"tokenmill extractions cancel {made['id']}" in told
    assert extracted(extracting, folder).exit_code == 0
    assert is_nothing_stored(extracting)


def test_unfinished_work_of_an_earlier_version_is_named(extracting: ExtractingService, folder: Path) -> None:
    assert extracted(extracting, folder).exit_code == 0
    (left,) = folder.glob("d/runs/*")
    (left / "state.json").unlink()
    (left / "documents.jsonl").touch()
    (folder / "fields.jsonl").unlink()
    with pytest.raises(InputError, match=rf"{left} has the unfinished work of this command.*documents\.jsonl"):
        extracting.service.run(*arguments(folder))


def test_a_pdf_without_text_fails_without_any_field(extracting: ExtractingService, folder: Path) -> None:
    billed = extracting.billed_tokens()
    (folder / "scan").mkdir()
    (folder / "scan" / "scan.pdf").write_bytes(write_pdf([PdfPage(), PdfPage()]))
    outputs = ("-o", folder / "fields.jsonl", "--parquet", folder / "fields.parquet")
    schema = ("--schema", folder / "schema.json", "--data-dir", folder / "d")
    with extracting.working():
        told = extracting.service.run("extract", folder / "scan", *schema, *outputs)
    assert (told.exit_code, extracting.billed_tokens()) == (1, billed), told.stderr
    record = json.loads((folder / "fields.jsonl").read_text())
    assert (record["status"], record["error"]["code"], record["fields"]) == ("failed", "no_text", None)
    (row,) = pq.read_table(folder / "fields.parquet").to_pylist()
    assert (row["review"], row["score"], row["vendor"], row["total"]) == (True, None, None, None)
    assert row["error"].endswith("(no_text)")


def known(folder: Path) -> Path:
    """Write two documents whose fields are known, and return the gold file."""
    (folder / "zebra.txt").write_text("Invoice of Zebra Ltd\nTotal: 42.00 EUR\n")
    (folder / "yak.eml").write_text("From: office@example.org\nSubject: Receipt\n\nYak Inc, total 8.00\n")
    fields = {"zebra.txt": {"vendor": "Zebra Ltd", "total": 42.0}, "yak.eml": {"vendor": "Yak Inc", "total": 8.0}}
    lines = [json.dumps({"document": str(folder / name), "fields": gold}) for name, gold in fields.items()]
    path = folder / "gold.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_a_schema_that_no_grammar_can_keep_is_refused_before_anything_is_started(folder: Path) -> None:
    fields = {"code": {"type": "string"}, "vendor": {"type": "string", "pattern": "(?=a)b"}}
    (folder / "schema.json").write_text(json.dumps({"type": "object", "properties": fields}))
    given = ("--model", str(ROOT / "examples" / "demo_model"), "--max-fields", "1")
    with pytest.raises(InputError, match="the schema cannot be enforced: "):
        run(*arguments(folder, *given), TOKENMILL_BASE_URL="")
    assert not (folder / "d").exists()


def test_examples_are_shown_and_no_value_of_theirs_comes_out(extracting: ExtractingService, folder: Path) -> None:
    (folder / "in" / "a.txt").write_text("vendor: Zebra Ltd\ntotal: 9\n")
    before = len(extracting.answering.asked)
    told = extracted(extracting, folder, "--examples", known(folder), "--no-again")
    assert told.exit_code == 0, told.stderr
    prompts = [body["messages"][-1]["content"] for body in extracting.answering.asked[before:]]
    assert all("<example>\nInvoice of Zebra Ltd" in prompt for prompt in prompts)
    assert is_nothing_stored(extracting)


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
    assert "<document>\nInvoice\nvendor: Ash Ltd" in result.stdout
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
        ({"more": ["--param", "messages=[]"]}, "params cannot have 'messages'"),
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


def test_without_an_output_it_says_how_to_look_first(folder: Path) -> None:
    with pytest.raises(InputError, match="--dry-run"):
        run("extract", str(folder / "in"), "--schema", str(folder / "schema.json"))
