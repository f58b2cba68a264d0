"""Tests of the batch, file and admin commands against a real API process and its database; no batch is processed."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from jobs.access import SERVICE
from jobs.errors import ConflictError, InputError, NotFoundError, ServiceError
from tests.cli.service import Service, Tokenmill, completed, run
from tests.database_roles import as_owner


def test_a_file_goes_up_and_comes_down_unchanged(server: Tokenmill, batch_file: Path, tmp_path: Path) -> None:
    file_id = server("files", "upload", batch_file).stdout.strip()
    assert server("files", "download", file_id, "-o", tmp_path / "back.jsonl").exit_code == 0
    assert (tmp_path / "back.jsonl").read_bytes() == batch_file.read_bytes()
    assert list(tmp_path.glob("*.part")) == []


def test_listed_files_are_tab_separated_below_a_header_and_gone_once_deleted(
    server: Tokenmill, batch_file: Path
) -> None:
    file_id = server("files", "upload", batch_file).stdout.strip()
    header, listed = (line.split("\t") for line in server("files", "list", "--limit", "1").stdout.splitlines())
    assert header == ["id", "purpose", "bytes", "created", "name"]
    assert listed[:3] == [file_id, "batch", str(batch_file.stat().st_size)]
    assert listed[4] == "in.jsonl"
    assert server("files", "delete", file_id).stdout == f"deleted {file_id}\n"
    assert file_id not in server("files", "list").stdout


def test_a_batch_is_created_from_a_local_file_with_the_endpoint_of_its_lines(
    server: Tokenmill, batch_file: Path
) -> None:
    created = server("batch", "create", batch_file, "--metadata", "team=a=b", "--priority", "bulk", "--json")
    batch = json.loads(created.stdout)
    assert batch["endpoint"] == "/v1/completions"
    assert batch["metadata"] == {"team": "a=b"}
    shown = json.loads(server("batch", "show", batch["id"], "--json").stdout)
    assert shown["input_file_id"] == batch["input_file_id"]
    assert shown["priority"] == "bulk"


def test_a_batch_is_created_from_an_uploaded_file(server: Tokenmill, batch_file: Path) -> None:
    file_id = server("files", "upload", batch_file).stdout.strip()
    batch_id = server("batch", "create", file_id, "--endpoint", "/v1/completions", "--window", "2h").stdout.strip()
    shown = server("batch", "show", batch_id).stdout.splitlines()
    assert shown[0].split() == ["status", "validating"]
    assert f"input_file_id      {file_id}" in shown
    assert "lines              0 done, 0 failed of 0" in shown
    assert "cost               0.00 USD" in shown


def test_the_newest_batches_are_listed_first(server: Tokenmill, batch_file: Path) -> None:
    batch_ids = [server("batch", "create", batch_file).stdout.strip() for _ in range(2)]
    header, *rows = [line.split("\t") for line in server("batch", "list", "--limit", "2").stdout.splitlines()]
    assert header[:2] == ["id", "status"]
    assert [row[0] for row in rows] == batch_ids[::-1]
    assert rows[0][1:2] == ["validating"]


def test_a_batch_is_cancelled_and_has_no_results_yet(server: Tokenmill, batch_file: Path, tmp_path: Path) -> None:
    batch_id = server("batch", "create", batch_file).stdout.strip()
    assert server("batch", "results", batch_id).stdout == ""
    assert server("batch", "results", batch_id, "-o", tmp_path / "out.jsonl").exit_code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    assert server("batch", "cancel", batch_id).stdout in ("cancelling\n", "cancelled\n")


def test_an_exact_dry_run_waits_until_a_worker_has_counted(
    service: Service, server: Tokenmill, batch_file: Path
) -> None:
    def work() -> None:
        deadline = time.monotonic() + 60
        while not service.count_an_input(tokens=7):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    before = server("files", "list").stdout
    with ThreadPoolExecutor(1) as threads:
        worker = threads.submit(work)
        done = server("batch", "create", batch_file, "--dry-run", "--exact")
        worker.result()
    assert "counted 0 of 3 lines" in done.stderr
    assert "21 in, at most 12 out" in done.stdout
    assert "0 of 3 lines" in done.stdout
    assert "Exact: a worker of the model" in done.stdout
    assert server("files", "list").stdout == before
    with pytest.raises(InputError, match="--exact needs --dry-run"):
        server("batch", "create", batch_file, "--exact")


def test_a_dry_run_says_what_a_batch_would_take_and_leaves_nothing(server: Tokenmill, batch_file: Path) -> None:
    before = (server("batch", "list").stdout, server("files", "list").stdout)
    shown = server("batch", "create", batch_file, "--dry-run").stdout
    assert "0 of the first 3 lines" in shown
    assert "at most 12 out" in shown
    assert "No running worker serves the model 'tiny'." in shown
    assert "no limit: it fits" in shown
    assert (server("batch", "list").stdout, server("files", "list").stdout) == before


def test_a_batch_is_changed_and_says_what_was_decided_and_why_it_cannot_be_retried_yet(
    server: Tokenmill, batch_file: Path
) -> None:
    batch_id = server("batch", "create", batch_file).stdout.strip()
    changed = server("batch", "change", batch_id, "--priority", "bulk", "--window", "2h").stdout
    assert changed.startswith("in.jsonl: class bulk, to end by 20")
    shown = server("batch", "decisions", batch_id).stdout
    assert "Its owner changed it: class normal → bulk and window 24h → 2h." in shown
    with pytest.raises(InputError, match="Cannot retry a batch with status 'validating'"):
        server("batch", "retry", batch_id)
    with pytest.raises(InputError, match="There is nothing to change"):
        server("batch", "change", batch_id)


def test_results_that_are_refused_leave_an_earlier_copy_of_them_alone(server: Tokenmill, tmp_path: Path) -> None:
    copy = tmp_path / "out.jsonl"
    copy.write_text("earlier")
    with pytest.raises(InputError, match="batch_none"):
        server("batch", "results", "batch_none", "-o", copy)
    assert copy.read_text() == "earlier"


def test_results_of_a_day_that_is_kept_no_longer_are_refused_with_the_file_that_has_them(
    server: Tokenmill, database: str, batch_file: Path
) -> None:
    batch_id = server("batch", "create", batch_file).stdout.strip()
    with psycopg.connect(database) as connection:
        query = """
            UPDATE batch SET created_at = '2020-01-01', num_completed = 1, output_file_id = input_file_id
            WHERE id = %s RETURNING output_file_id
        """
        row = connection.execute(query, [batch_id]).fetchone()
    assert row is not None
    with pytest.raises(InputError, match=f"{batch_id}.*no longer kept.*{row[0]}"):
        server("batch", "results", batch_id)


@pytest.mark.parametrize(
    ("arguments", "variables", "sentence"),
    [
        (("batch", "show", "batch_none"), {}, "batch_none"),
        (("files", "delete", "file_none"), {}, "file_none"),
        (("batch", "list"), {"TOKENMILL_API_KEY": "tm-wrong"}, "Check TOKENMILL_API_KEY."),
    ],
)
def test_what_the_server_refuses_is_said_in_its_words(
    server: Tokenmill, arguments: tuple[str, ...], variables: dict[str, str], sentence: str
) -> None:

    with pytest.raises(InputError, match=sentence):
        server(*arguments, **variables)


def test_a_base_url_without_v1_is_explained(server: Tokenmill, base_url: str) -> None:

    with pytest.raises(InputError, match="TOKENMILL_BASE_URL should end in /v1"):
        server("batch", "list", TOKENMILL_BASE_URL=base_url.removesuffix("/v1"))


def test_a_revoked_key_opens_nothing(server: Tokenmill, database: str) -> None:
    from jobs.errors import AuthenticationError

    admin = {"TOKENMILL_DATABASE_URL": database}
    secret = run("keys", "create", "acme", **admin).stdout.strip()
    assert server("batch", "list", TOKENMILL_API_KEY=secret).exit_code == 0
    assert run("keys", "revoke", secret, **admin).stdout.startswith("revoked key_")
    with pytest.raises(AuthenticationError, match="revoked"):
        server("batch", "list", TOKENMILL_API_KEY=secret)
    listed = run("keys", "list", "acme", **admin).stdout
    assert secret[:10] in listed
    assert secret not in listed


def test_a_budget_is_set_and_lifted(database: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database}
    run("tenants", "create", "budgeted", "--budget", "700", **admin)
    assert run("tenants", "budget", "budgeted", **admin).stdout.startswith("limit 700")
    assert run("tenants", "budget", "budgeted", "500", **admin).stdout.startswith(
        "limit 500, available 500, reserved 0"
    )
    assert run("tenants", "budget", "budgeted", **admin).stdout.startswith("limit 500"), "looking changes nothing"
    with pytest.raises(InputError, match="give a whole number, or `none`"):
        run("tenants", "budget", "budgeted", "5e3", **admin)
    assert run("tenants", "budget", "budgeted", "none", **admin).stdout.startswith("no limit")
    with pytest.raises(NotFoundError, match="tenants create nobody"):
        run("tenants", "budget", "nobody", "5", **admin)


def test_a_store_is_adopted_by_the_database_that_shall_sweep_it(database: str, tmp_path: Path) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database, "TOKENMILL_STORAGE_URL": tmp_path.as_uri()}
    (tmp_path / ".swept-by").write_text("7/16384")
    assert "and 7/16384 no longer does" in run("db", "adopt-storage", **admin).stdout
    assert "no longer" not in run("db", "adopt-storage", **admin).stdout, "it is ours by now"
    with pytest.raises(InputError, match="TOKENMILL_STORAGE_URL"):
        run("db", "adopt-storage", TOKENMILL_DATABASE_URL=database)


def test_no_store_is_adopted_by_a_database_without_a_schema(empty_database: str, tmp_path: Path) -> None:
    (tmp_path / ".swept-by").write_text("7/16384")
    admin = {"TOKENMILL_DATABASE_URL": empty_database, "TOKENMILL_STORAGE_URL": tmp_path.as_uri()}
    with pytest.raises(ServiceError, match="tokenmill db upgrade"):
        run("db", "adopt-storage", **admin)
    assert (tmp_path / ".swept-by").read_text() == "7/16384"


def test_limits_of_a_tenant_are_shown_set_and_given_back(database: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database, "TOKENMILL_TENANT_FILES": "77"}
    run("tenants", "create", "limited", **admin)

    def shown(*changes: str) -> dict[str, tuple[str, str]]:
        lines = run("tenants", "limits", "limited", *changes, **admin).stdout.splitlines()
        return {limit: (value, origin) for limit, value, origin in (line.split("\t") for line in lines)}

    assert shown()["files"] == ("77", "default")
    changed = shown("--set", "files=5", "--set", "open_batches=0")
    assert (changed["files"], changed["open_batches"]) == (("5", "set"), ("0", "set"))
    assert shown("--set", "files=default")["files"] == ("77", "default")
    for wrong in ("files", "files=-1", "colour=1", "files=1.5"):
        with pytest.raises(InputError, match=r"LIMIT is one of .*open_batches, enqueued_tokens"):
            run("tenants", "limits", "limited", "--set", wrong, **admin)


def test_a_tenant_has_a_retention_of_its_own_and_can_be_deleted(server: Tokenmill, database: str) -> None:
    from jobs.errors import AuthenticationError

    admin = {"TOKENMILL_DATABASE_URL": database}
    made = run("tenants", "create", "leaving", **admin).stdout
    secret = run("keys", "create", "leaving", **admin).stdout.strip()
    assert run("tenants", "retention", "leaving", "7", **admin).stdout == "7 days\n"
    assert run("tenants", "retention", "leaving", **admin).stdout == "7 days\n", "looking changes nothing"
    with pytest.raises(InputError, match="give a whole number, or `default`"):
        run("tenants", "retention", "leaving", "soon", **admin)
    assert "TOKENMILL_RETENTION_DAYS" in run("tenants", "retention", "leaving", "default", **admin).stdout
    assert run("tenants", "delete", "leaving", "--yes", **admin).stdout == f"deleted {made}"
    assert "leaving" not in run("tenants", "list", **admin).stdout
    with pytest.raises(AuthenticationError, match="revoked"):
        server("batch", "list", TOKENMILL_API_KEY=secret)


def test_a_new_tenant_may_not_be_urgent_until_the_operator_says_so(database: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database}

    def best(name: str) -> str:
        rows = [line.split("\t") for line in run("tenants", "list", **admin).stdout.splitlines()]
        return next(row[3] for row in rows if row[1] == name)

    run("tenants", "create", "patient", **admin)
    run("tenants", "create", "hasty", "--best-priority", "urgent", **admin)
    assert (best("patient"), best("hasty")) == ("normal", "urgent")
    assert run("tenants", "priority", "patient", "urgent", **admin).stdout == "patient may ask for urgent at best\n"
    assert best("patient") == "urgent"


def test_the_class_that_nobody_asks_for_is_not_offered_by_any_command(batch_file: Path) -> None:
    for command in (
        ("batch", "create", batch_file, "--priority"),
        ("batch", "change", "batch_1", "--priority"),
        ("tenants", "create", "new", "--best-priority"),
        ("tenants", "priority", "acme"),
    ):
        refused = run(*command, "overflow")
        assert refused.exit_code == 2
        assert "'overflow' is not one of 'urgent', 'normal', 'bulk'" in refused.stderr


def test_tenants_and_models_are_listed(database: str, api_key: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database}
    run("tenants", "create", "small", "--budget", "1000", "--weight", "0.5", **admin)
    rows = [line.split("\t")[1:] for line in run("tenants", "list", **admin).stdout.splitlines()]
    assert ["small", "0.5", "normal", "1000", "0", "0", "0", "0", ""] in rows
    listed = run("models", "list", **admin).stdout
    chats = "/v1/chat/completions /v1/completions"
    assert f"tiny\t/models/tiny\tno worker\t0.00\t0.00\t0.00\t1\t1\tUSD\t{chats}\n" in listed


def test_a_model_has_prices_in_currency_for_a_million_tokens_and_for_each_class(database: str, api_key: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database, "TOKENMILL_CURRENCY": "EUR"}
    run("models", "add", "priced", "/models/priced", "--input-price", "0.15", "--output-price", "0.6", **admin)
    assert (
        "priced\t/models/priced\tnot offered: no worker has loaded it\t0.15\t0.15\t0.60\t1\t1\tEUR\t"
        in run("models", "list", **admin).stdout
    )
    factors = ("--urgent-factor", "2", "--bulk-factor", "0.5")
    said = run("models", "set", "priced", "--cached-input-price", "0.000015", *factors, **admin).stdout
    assert said == (
        "priced: input 0.15, cached input 0.000015, output 0.60 EUR per million tokens; urgent × 2, bulk × 0.5\n"
    )
    said = run("models", "set", "priced", "--cached-input-price", "same", "--output-price", "0.7", **admin).stdout
    assert said.startswith("priced: input 0.15, cached input 0.15, output 0.70 EUR")


def test_an_added_model_answers_what_its_files_say(database: str, tmp_path: Path) -> None:
    head = "BertForSequenceClassification"
    for name, said in {
        "vectors": {"model_type": "bert"},
        "chats": {"model_type": "llama"},
        "scores": {"model_type": "bert", "architectures": [head]},
    }.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(said))
        run("models", "add", name, folder, TOKENMILL_DATABASE_URL=database)
    rows = [line.split("\t") for line in run("models", "list", TOKENMILL_DATABASE_URL=database).stdout.splitlines()]
    endpoints = {row[0]: row[-1] for row in rows}
    assert (endpoints["vectors"], endpoints["scores"]) == ("/v1/embeddings", "/v1/rerank")
    assert endpoints["chats"] == "/v1/chat/completions /v1/completions"
    for name in ("vectors", "chats", "scores"):
        run("models", "remove", name, TOKENMILL_DATABASE_URL=database)


def test_a_model_is_offered_where_its_files_can_be_read_and_removed_again(
    database: str, api_key: str, tmp_path: Path
) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database}
    (tmp_path / "config.json").write_text("{}")
    assert run("models", "add", "here", tmp_path, **admin).stdout == "added here\n"
    said = run("models", "add", "org/elsewhere", "org/elsewhere", **admin).stdout
    assert said == "added org/elsewhere; batches may use it once a worker has loaded it\n"
    for name in ("here", "org/elsewhere"):
        assert run("models", "remove", name, **admin).stdout == f"removed {name}\n"
    for content, sentence in (("", "config.json cannot be read"), ("[]", "does not match its name")):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(InputError, match=sentence):
            run("models", "add", "here", tmp_path, **admin)
    (tmp_path / "a.gguf").write_bytes(b"no model")
    with pytest.raises(InputError, match=r"a\.gguf does not match its name"):
        run("models", "add", "here", tmp_path / "a.gguf", **admin)
    with pytest.raises(NotFoundError, match="'here' does not exist"):
        run("models", "remove", "here", **admin)


def test_the_past_is_priced_anew_and_stays_as_it_was_billed(service: Service, batch_file: Path) -> None:
    admin = {"TOKENMILL_DATABASE_URL": service.database, "TOKENMILL_CURRENCY": "EUR"}
    batch_id = service.run("batch", "create", batch_file).stdout.strip()
    service.work_off(batch_id, [completed(number) for number in range(3)])  # 2 + 3 tokens each
    shown = run("models", "reprice", "tiny", "--input-price", "0.5", "--output-price", "2", **admin).stdout
    header, row = (line.split("\t") for line in shown.splitlines())
    assert header[5:] == ["billed EUR", "at these prices EUR", "difference"]
    assert row == ["acme", "3", "6", "0", "9", "0.00", "0.000021", "0.000021"]
    assert run("models", "reprice", "tiny", "--until", "2020-01-31", **admin).stdout.splitlines() == ["\t".join(header)]
    assert "cost               0.00 USD" in service.run("batch", "show", batch_id).stdout


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        (("set", "tiny"), InputError, "no price is given"),
        (("set", "absent", "--input-price", "1"), NotFoundError, "'absent' does not exist"),
        (("add", "tiny", "/models/tiny"), ConflictError, "tokenmill models set tiny"),
        (("set", "tiny", "--input-price", "0,15"), InputError, "--input-price is '0,15'; give a number per million"),
        (("set", "tiny", "--output-price", "0.0000001"), InputError, "at most 6 decimal places"),
        (("set", "tiny", "--bulk-factor", "half"), InputError, "--bulk-factor is 'half'; give a number such as 2"),
        (("set", "tiny", "--cached-input-price", "0.2"), InputError, "cost 0.20 per million and the others 0.00"),
        (("set", "tiny", "--input-price", "1000001"), InputError, "1000001.00, 0.00 per million.*0 to 1000000.00"),
        (("set", "tiny", "--urgent-factor", "101"), InputError, "0 to 10000 per cent"),
    ],
)
def test_prices_that_cannot_be_are_refused_and_change_nothing(
    database: str, api_key: str, arguments: tuple[str, ...], error: type[Exception], sentence: str
) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database}
    before = run("models", "list", **admin).stdout
    with pytest.raises(error, match=sentence):
        run("models", *arguments, **admin)
    assert run("models", "list", **admin).stdout == before


def test_an_audit_of_good_data_is_clean_and_bad_data_is_a_failure(database: str, api_key: str) -> None:
    import psycopg

    admin = {"TOKENMILL_DATABASE_URL": database}
    tenant_id = run("tenants", "create", "audited", **admin).stdout.strip()
    assert run("audit", **admin).stdout == "clean\n"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE budget SET spent_tokens = 7 WHERE tenant_id = %s", [tenant_id])
        found = run("audit", **admin)
        connection.execute("UPDATE budget SET spent_tokens = 0 WHERE tenant_id = %s", [tenant_id])
    assert found.exit_code == 1
    assert tenant_id in found.stdout


def test_an_upgraded_schema_is_named_by_its_revision(database: str) -> None:
    from jobs.database import head_revision

    answer = run("db", "upgrade", TOKENMILL_DATABASE_URL=database, TOKENMILL_DATABASE_OWNER_URL=as_owner(database))
    assert answer.stdout.startswith(f"the schema is at revision {head_revision()}\n")
    assert SERVICE in answer.stdout
