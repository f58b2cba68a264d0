"""Tests of `tokenmill pipelines`, `schedules`, `runs` and `stores` at a server: a file is applied twice, and run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from features.pipelines.commands.apply import SCHEDULE_DEFAULTS
from features.pipelines.http.schedules import ScheduleBody
from jobs.errors import InputError
from tests.cli.service import Service, run

FILE = """
name: nightly
max_cost: 2.50
steps:
  - name: fields
    source: {store: documents, keys: "in/*.jsonl"}
    prompt: Read {{ text }}
    model: tiny
    parameters: {max_tokens: 8}
    output: {store: results, keys: "{pipeline}/{date}/part-{n}.jsonl"}
schedules:
  - {cron: "30 2 * * *", time_zone: Europe/Berlin}
"""


def test_a_file_is_applied_again_and_again_and_its_runs_are_followed(service: Service, tmp_path: Path) -> None:
    for name, options in (("documents", []), ("results", ["--writable"])):
        (tmp_path / name).mkdir()
        admin = {"TOKENMILL_DATABASE_URL": service.database}
        added = service.run("stores", "add", "acme", name, f"file://{tmp_path / name}", *options, **admin)
        assert added.exit_code == 0
    (tmp_path / "documents" / "in").mkdir()
    (tmp_path / "documents" / "in" / "a.jsonl").write_text('{"text": "one"}\n')
    path = tmp_path / "nightly.yaml"
    path.write_text(FILE)
    tried = service.run("pipelines", "apply", path, "--dry-run").stdout
    assert tried.splitlines()[:2] == ["row-000000001", "  user       Read one"]
    assert tried.splitlines()[-1].startswith("1 file of 16 bytes. Together 1 row: about ")
    as_json = json.loads(service.run("pipelines", "apply", path, "--dry-run", "--json").stdout)
    assert as_json["lines"][0]["body"]["messages"] == [{"role": "user", "content": "Read one"}]
    assert service.run("pipelines", "list", "--json").stdout.strip() == "[]", "a dry run changes nothing"
    first = service.run("pipelines", "apply", path).stdout
    assert "pipeline nightly version 1: created" in first
    assert "schedule nightly: created" in first
    assert first.count("T02:30:00+0") == 5
    assert "pipeline nightly version 1: unchanged" in service.run("pipelines", "apply", path).stdout
    with pytest.raises(InputError, match="--json needs --dry-run"):
        service.run("pipelines", "apply", path, "--json")
    path.write_text(FILE.replace("max_cost: 2.50", "max_tokens: 1000"))
    assert "pipeline nightly version 2: changed" in service.run("pipelines", "apply", path).stdout
    shown = json.loads(service.run("pipelines", "show", "nightly").stdout)
    assert (shown["max_cost"], shown["max_tokens"]) == (None, 1000)
    run_id = service.run("runs", "trigger", "nightly", "--idempotency-key", "once").stdout.strip()
    assert service.run("runs", "trigger", "nightly", "--idempotency-key", "once").stdout.strip() == run_id
    assert run_id in service.run("runs", "list", "--pipeline", "nightly").stdout
    assert service.run("runs", "cancel", run_id).stdout.strip() == f"{run_id} cancelled"
    watched = service.run("runs", "watch", run_id)
    assert watched.exit_code == 1
    assert watched.stdout.startswith("cancelled: cancelled by key_")
    assert service.run("runs", "delete", run_id).stdout.strip() == f"deleted {run_id}"
    filled = service.run(
        "schedules", "backfill", "nightly", "--from", "2026-10-24T00:00:00Z", "--to", "2026-10-26T12:00:00Z"
    ).stdout
    assert len(filled.split()) == 3
    assert "paused" in service.run("schedules", "pause", "nightly").stdout
    assert "paused" in service.run("schedules", "list").stdout
    shown_schedule = service.run("schedules", "show", "nightly").stdout
    assert re.search(r"^created_at +20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ$", shown_schedule, re.MULTILINE)
    assert "deleted nightly" in service.run("pipelines", "delete", "nightly").stdout
    listed = service.run("stores", "list", "acme", TOKENMILL_DATABASE_URL=service.database).stdout
    assert listed.splitlines()[1].split("\t")[0::2] == ["documents", "no"]


def test_what_a_file_says_no_longer_is_no_longer_in_force(service: Service, tmp_path: Path) -> None:
    admin = {"TOKENMILL_DATABASE_URL": service.database}
    for name, options in (("rows", []), ("labelled", ["--writable"])):
        (tmp_path / name).mkdir()
        assert service.run("stores", "add", "acme", name, f"file://{tmp_path / name}", *options, **admin).exit_code == 0
    content = FILE.replace("documents", "rows").replace("results", "labelled").replace("nightly", "hourly")
    path = tmp_path / "hourly.yaml"
    path.write_text(content)
    assert service.run("pipelines", "apply", path).exit_code == 0
    path.write_text(content.replace(", time_zone: Europe/Berlin", ""))
    assert service.run("pipelines", "apply", path).exit_code == 0
    assert json.loads(service.run("schedules", "show", "hourly", "--json").stdout)["time_zone"] == "UTC"
    path.write_text(content.replace("name: hourly", "name: other").replace("{cron", "{name: hourly, cron"))
    with pytest.raises(InputError, match="schedule 'hourly' exists and belongs to another pipeline"):
        service.run("pipelines", "apply", path)
    assert "other" not in service.run("pipelines", "list").stdout, "nothing was changed"


def test_defaults_are_those_of_the_server() -> None:
    fields = ScheduleBody.model_fields
    assert {name: fields[name].default for name in SCHEDULE_DEFAULTS} == SCHEDULE_DEFAULTS
    assert set(fields) - set(SCHEDULE_DEFAULTS) == {"pipeline", "name", "cron"}


@pytest.mark.parametrize(
    "command",
    [
        ("webhooks", "remove", ""), ("webhooks", "rotate", " "), ("webhooks", "replay", "whep_1", ""),
        ("pipelines", "show", ""), ("schedules", "delete", ""), ("runs", "cancel", ""),
    ],
)  # fmt: skip
def test_an_empty_id_is_refused(command: tuple[str, ...]) -> None:
    done = run(*command)
    assert done.exit_code == 2
    assert "it is empty" in done.output


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("name: [", "is not YAML in line"),
        ("- a", "it is not a pipeline"),
        ("name: a\ncolour: red", "there is no field 'colour'; allowed are name, steps"),
        ("steps: []", "name is None"),
        ("name: a\nschedules: daily", "schedules must be a list"),
        ("name: a\nschedules: [{cron: a}, {cron: b}]", "several schedules have the name 'a'"),
        ("name: a\nschedules: [{name: 5}]", "a schedule's name is 5"),
        ("name: a\nschedules: [{starts_at: 2026-02-30}]", "value that cannot be used: day "),
        ("name: a\nsteps: &a [*a]", "nested too deeply"),
        ("name: a\nsteps: !!set {a}", "a set cannot be written as JSON"),
        ("name: a\nsteps: !!binary YQ==", "a bytes cannot be written as JSON"),
        ("name: a\nmax_cost: .inf", "inf is not a number in JSON"),
    ],
)
def test_a_wrong_file_is_refused_before_anybody_is_asked(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(content)
    with pytest.raises(InputError, match=said):
        run("pipelines", "apply", path)
