"""Tests of a stack's life: stopped in its grace, taken down and up again, scaled, with a full disk."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import openai
import pytest

from cli.embedded.sockets import free_port
from tests.deploy.containers.builders import lines
from tests.deploy.containers.composed import COMPOSE_1, COMPOSE_2, ROLES, Composed, until
from tests.e2e.builders import Customer

pytestmark = [pytest.mark.containers, pytest.mark.timeout(900)]

GRACE_SECONDS = 60
"""The longest `stop_grace_period` of docker-compose.yml."""
ACTIVE_LEASES = "SELECT count(*) FROM chunk WHERE state = 'leased'"


def test_a_stop_in_a_batch_ends_in_its_grace_and_a_start_completes_it(customer: Customer) -> None:
    stack = customer.stack
    batch_id = customer.submit(lines(2000, max_tokens=32))
    until(lambda: stack.num_done(batch_id) > 0, stack)
    began = time.monotonic()
    stack.call("stop", *ROLES)
    assert time.monotonic() - began < GRACE_SECONDS
    codes = {name: stack.exit_codes(name) for name in ROLES}
    assert codes == {name: {"0"} for name in ROLES}, "137: killed at the end of its grace"
    assert stack.query(ACTIVE_LEASES) == [("0",)]
    stack.up()
    assert len(customer.answers(batch_id, num_lines=2000)) == 2000
    assert stack.audit() == "clean"


def test_down_and_up_keep_what_was_there(customer: Customer) -> None:
    stack = customer.stack
    batch_id = customer.submit(lines(20))
    before = customer.answers(batch_id, num_lines=20)
    ((moment,),) = stack.query("SELECT now()")
    stack.call("down")
    assert stack.ids("api") == []
    stack.up()
    was_live = f"started_at < '{moment}' AND heartbeat_at > timestamptz '{moment}' - interval '9 seconds'"
    assert stack.query(f"SELECT count(*) FROM worker WHERE {was_live} AND stopped_at IS NULL") == [("0",)]
    assert customer.answers(batch_id, num_lines=20) == before
    assert len(customer.answers(customer.submit(lines(20)), num_lines=20)) == 20


def test_two_workers_share_a_batch(customer: Customer) -> None:
    stack = customer.stack
    live = "SELECT count(*) FROM worker WHERE model = 'demo' AND heartbeat_at > now() - interval '6 seconds'"
    stack.up("--scale", "worker-cpu=2")
    until(lambda: stack.query(live) == [("2",)], stack)
    customer.answers(customer.submit(lines(3000, max_tokens=16)), num_lines=3000)
    until(lambda: stack.query(f"{live} AND num_tokens > 0") == [("2",)], stack)
    stack.up("--scale", "worker-cpu=1")


@pytest.mark.parametrize("compose", [COMPOSE_1, COMPOSE_2], ids=["compose-1", "compose-2"])
def test_both_generations_of_compose_read_the_file_alike(stack: Composed, compose: str) -> None:
    services = stack.run(compose, "--profile", "gpu", "config", "--services")
    assert services.returncode == 0, services.stderr
    assert set(services.stdout.split()) >= {*ROLES, "postgres", "redis", "migrate", "worker-gpu"}


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with room for 24 MB."""
    folder = tmp_path_factory.mktemp("small")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,uid=10001,gid=10001", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.fixture(scope="module")
def full_stack(daemon: None, small_disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """A second stack, whose object store is on the small disk."""
    (small_disk / "prepared").mkdir()
    (small_disk / "prepared").chmod(0o777)
    stack = Composed(folder=tmp_path_factory.mktemp("full"), port=free_port())
    stack.lay_out()
    options = {name: {"driver_opts": {"type": "none", "o": "bind", "device": str(folder)}}
               for name, folder in (("objects", small_disk), ("prepared", small_disk / "prepared"))}  # fmt: skip
    (stack.folder / "docker-compose.override.yml").write_text(json.dumps({"volumes": options}))
    try:
        stack.up()
        stack.add_tenant("acme")
        yield stack
    finally:
        stack.run(stack.compose, "down", "--volumes", "--timeout", "5")


def fill(path: Path) -> None:
    """Write until the disk has no room."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(65536))


def test_a_full_disk_refuses_uploads_and_room_ends_it(full_stack: Composed, small_disk: Path) -> None:
    customer = Customer(id="acme", client=full_stack.client(), stack=full_stack)
    batch_id = customer.submit(lines(20))
    customer.answers(batch_id, num_lines=20)
    filler = small_disk / "filler"
    fill(filler)
    with pytest.raises(openai.APIStatusError) as refused:
        customer.upload(b"{}\n" * 1_000_000)
    assert refused.value.status_code == 503
    until(lambda: full_stack.readiness().get("storage") == "full", full_stack)
    assert full_stack.readiness()["status_code"] == 200
    assert customer.client.batches.retrieve(batch_id).status == "completed"
    filler.unlink()
    until(lambda: full_stack.readiness().get("storage") == "ok", full_stack)
    customer.answers(customer.submit(lines(20)), num_lines=20)
    assert full_stack.audit() == "clean"
