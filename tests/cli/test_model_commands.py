"""Tests of the commands for models: added, priced, listed and removed, in a database of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jobs.errors import ConflictError, InputError, NotFoundError
from tests.cli.service import Service, completed, run


def test_tenants_and_models_are_listed(database: str, api_key: str) -> None:
    admin = {"TOKENMILL_DATABASE_URL": database}
    run("tenants", "create", "small", "--budget", "1000", "--weight", "0.5", **admin)
    rows = [line.split("\t")[1:] for line in run("tenants", "list", **admin).stdout.splitlines()]
    assert ["small", "0.5", "normal", "1000", "0", "0", "0", "0", ""] in rows
    listed = run("models", "list", **admin).stdout
    chats = "/v1/chat/completions /v1/completions"
    assert f"tiny\t/models/tiny\tno worker\t0.00\t0.00\t0.00\t1\t1\tUSD\t–\t{chats}\n" in listed


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
    of_here = ("--base", "here", "--adapter")
    assert run("models", "add", "sql", *of_here, "sql-lora", **admin).stdout.startswith("added sql;")
    assert "here + sql-lora" in run("models", "list", **admin).stdout
    for wrong in (("x",), ("x", "--base", "here"), ("x", tmp_path, *of_here, "sql-lora"), ("x", *of_here, tmp_path)):
        with pytest.raises(InputError):
            run("models", "add", *wrong, **admin)
    assert run("models", "remove", "sql", **admin).exit_code == 0
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
