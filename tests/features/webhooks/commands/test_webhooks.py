"""Tests of `tokenmill webhooks` against an API and a local receiver."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from jobs.errors import InputError, ServiceError
from tests.cli.service import serving
from tests.webhook_receiver import LOCAL, Receiver, receiving

Tokenmill = Callable[..., Result]


@pytest.fixture(scope="module")
def tokenmill(database: str, api_key: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenmill]:
    folder: Path = tmp_path_factory.mktemp("api")
    with serving(database, folder, api_key=api_key, webhook_networks=LOCAL) as service:
        yield service.run


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def test_an_endpoint_is_added_tried_out_listed_and_removed(tokenmill: Tokenmill, receiver: Receiver) -> None:
    said = tokenmill("webhooks", "add", f"{receiver.url}/hook", "--event", "batch.completed", "--event", "batch.failed")
    fields = dict(line.split(None, 1) for line in said.stdout.splitlines()[:2])
    assert fields["secret"].startswith("whsec_")
    assert "not shown again" in said.stdout
    endpoint_id = fields["id"]
    assert tokenmill("webhooks", "test", endpoint_id).stdout == "the endpoint answered 200\n"
    assert len(receiver.received) == 1
    receiver.answers["/hook"] = (500, {}, b"")
    with pytest.raises(ServiceError, match="answered 500"):
        tokenmill("webhooks", "test", endpoint_id)
    (_, row) = (line.split("\t") for line in tokenmill("webhooks", "list").stdout.splitlines())
    assert row == [
        endpoint_id, "127.0.0.1", f"{receiver.url}/hook", "batch.completed batch.failed",
        f"whsec_…{fields['secret'][-4:]}", "ok",
    ]  # fmt: skip
    assert tokenmill("webhooks", "disable", endpoint_id).stdout == f"disabled {endpoint_id}\n"
    assert "disabled: disabled by its owner" in tokenmill("webhooks", "list").stdout
    assert tokenmill("webhooks", "enable", endpoint_id).stdout == f"enabled {endpoint_id}\n"
    rotated = json.loads(tokenmill("webhooks", "rotate", endpoint_id, "--keep-old", "--json").stdout)
    assert rotated["signing_secret"] != fields["secret"]
    assert tokenmill("webhooks", "deliveries", endpoint_id).stdout.splitlines() == [
        "id\tevent\tabout\tat\tstatus\ttries\tlast answer\tnext"
    ]
    assert tokenmill("webhooks", "remove", endpoint_id).stdout == f"removed {endpoint_id}\n"
    assert tokenmill("webhooks", "list", "--json").stdout == "[]\n"


def test_an_endpoint_for_a_chat_is_added(tokenmill: Tokenmill, receiver: Receiver) -> None:
    said = tokenmill(
        "webhooks", "add", f"{receiver.url}/chat", "--event", "report.ready", "--format", "slack", "--json"
    )
    assert json.loads(said.stdout)["format"] == "slack"


def test_what_is_wrong_is_one_sentence(tokenmill: Tokenmill) -> None:
    with pytest.raises(InputError, match=r"it leads into a private network\. Give an https:// URL"):
        tokenmill("webhooks", "add", "https://10.0.0.1/hook")
    with pytest.raises(InputError, match="No webhook endpoint found with id 'whep_none'"):
        tokenmill("webhooks", "replay", "whep_none", "whdel_none")
