"""Tests of the wheel, of docker-compose.yml, and of the name `kernels`, which transformers uses, too."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from prometheus_client import CollectorRegistry

from cli.embedded.binaries import find_valkey
from cli.embedded.sockets import free_port
from jobs.storage.prepared import PREFIX
from jobs.telemetry.serving import serve

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
WHEEL = SETTINGS["hatch"]["build"]["targets"]["wheel"]
NOT_SHIPPED = {"tests", "examples", "lab"}  # read from a checkout, not from an installation
SHIPPED = {path.parent.name for path in ROOT.glob("*/*.py")} - NOT_SHIPPED


def test_the_wheel_has_every_package_of_the_checkout_inside_the_one_that_users_import() -> None:
    assert {path.partition("/")[0] for path in WHEEL["only-include"]} == SHIPPED
    assert WHEEL["sources"] == {name: f"tokenmill/_packages/{name}" for name in SHIPPED - {"tokenmill"}}


def test_mypy_looks_at_every_package_of_the_wheel_at_the_studies_and_at_the_tests() -> None:
    assert set(SETTINGS["mypy"]["files"]) == {*SHIPPED, "lab", "tests"}


def test_ruff_knows_every_package_of_the_checkout_as_ours() -> None:
    assert set(SETTINGS["ruff"]["lint"]["isort"]["known-first-party"]) == SHIPPED | NOT_SHIPPED


def test_transformers_builds_a_llama_with_our_kernels_folder_first_on_the_path() -> None:
    script = (
        "import kernels, transformers\n"
        "config = transformers.LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2,\n"
        "    num_key_value_heads=1, intermediate_size=32, vocab_size=64)\n"
        "model = transformers.LlamaForCausalLM(config)\n"
        "print(kernels.__file__, sum(p.numel() for p in model.parameters()) > 0)\n"
    )
    outcome = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split() == [str(ROOT / "kernels" / "__init__.py"), "True"]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return found


def test_every_container_writes_to_its_volumes_alone_and_has_no_right_that_it_does_not_need(
    services: dict[str, Any],
) -> None:
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service.get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "caddy" else []), name
        assert not service.keys() & {"privileged", "network_mode", "pid"}, name
    assert [services[name]["user"] for name in ("postgres", "redis")] == ["postgres", "valkey"]


def test_compose_publishes_the_proxy_with_tls_and_else_only_on_this_machine_by_default(
    services: dict[str, Any],
) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {
        "api": ["${TOKENMILL_BIND:-127.0.0.1}:${TOKENMILL_PORT:-8000}:8000"],
        "prometheus": ["127.0.0.1:${PROMETHEUS_PORT:-9090}:9090"],
        "grafana": ["127.0.0.1:${GRAFANA_PORT:-3000}:3000"],
        "caddy": ["${TOKENMILL_HTTP_PORT:-80}:80", "${TOKENMILL_TLS_PORT:-443}:443"],
    }
    assert {name for name in published if "profiles" not in services[name]} == {"api"}


def test_compose_starts_nothing_without_passwords_and_the_example_has_none(services: dict[str, Any]) -> None:
    example = (ROOT / ".env.example").read_text()
    used = re.findall(r"\$\{(\w+_PASSWORD)(:\?)?", json.dumps(services))
    assert {name for name, _ in used} == PASSWORDS
    assert all(demanded for _, demanded in used)
    assert dict(re.findall(r"^(\w+_PASSWORD)=(.*)$", example, re.MULTILINE)) == dict.fromkeys(PASSWORDS, "")


PASSWORDS = {"POSTGRES_PASSWORD", "POSTGRES_SERVICE_PASSWORD", "POSTGRES_PREPARE_PASSWORD", "REDIS_PASSWORD"}


def test_a_container_has_the_password_of_its_own_database_role_alone(services: dict[str, Any]) -> None:
    """.env reaches all containers, so each overrides its values."""
    expected = {"migrate": {"", "SERVICE_", "PREPARE_"}, "postgres": {""}, "redis": set(), "prepare": {"PREPARE_"}}
    for name, service in services.items():
        given = service.get("environment", {})
        has = re.findall(r"\$\{POSTGRES_(\w*)PASSWORD", " ".join(map(str, given.values())))
        assert set(has) == expected.get(name, {"SERVICE_"} if "env_file" in service else set()), name
        if "env_file" in service:
            assert all(given[password] == "" for password in PASSWORDS), name
            assert {f"TOKENMILL_DATABASE_{whose}URL" for whose in ("", "PREPARE_", "OWNER_")} <= given.keys(), name


def test_the_brokers_password_is_asked_for_and_stands_in_no_arguments(services: dict[str, Any], tmp_path: Path) -> None:
    secret, address = "tell-nobody", tmp_path / "valkey.sock"
    program = tmp_path / "valkey-server"
    program.write_text(f'#!/bin/sh\nexec {find_valkey()} "$@" --port 0 --unixsocket {address} --dir {tmp_path}\n')
    program.chmod(0o755)
    command = [part.replace("$$", "$") for part in services["redis"]["command"]]
    variables = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REDISCLI_AUTH": secret}
    assert "REDISCLI_AUTH" in services["redis"]["environment"]
    with subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL) as process:
        try:
            refused, taken = (ask(process, address, said) for said in (b"PING\r\n", b"AUTH %b\r\n" % secret.encode()))
            assert (refused[:7], taken) == (b"-NOAUTH", b"+OK\r\n")
            shown = " ".join(psutil.Process(process.pid).cmdline())
            assert "valkey-server" in shown, "what is stopped is the server itself"
            assert secret not in shown
        finally:
            process.terminate()
    assert process.returncode == 0


def ask(process: subprocess.Popen[bytes], address: Path, said: bytes) -> bytes:
    """Return the answer of a server that may still be starting."""
    while process.poll() is None:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(address))
            except OSError:
                time.sleep(0.01)
            else:
                connection.sendall(said)
                return connection.recv(64)
    raise AssertionError("the server has ended")


def test_a_prepare_worker_writes_what_it_has_prepared_alone(services: dict[str, Any]) -> None:
    root, stores = "/var/lib/tokenmill/objects", "${TOKENMILL_STORES:-stores}:/srv/stores"
    assert services["prepare"]["volumes"] == [f"objects:{root}:ro", f"prepared:{root}/{PREFIX}", f"{stores}:ro"]
    for name in (
        "migrate",
        "api",
        "control",
        "dispatch",
    ):  # services that create, read and delete such objects mount them, too
        assert services[name]["volumes"] == [f"objects:{root}", f"prepared:{root}/{PREFIX}", stores], name
    assert f"{root}/{PREFIX}" in (ROOT / "deploy" / "Dockerfile").read_text(), "else a new volume is root's"


def test_a_health_check_is_rare_and_runs_a_shell_that_ends_itself(services: dict[str, Any]) -> None:
    """Five Pythons every 5 to 10 s took 6 % of a core, and piled up where the machine was busy."""
    checks = {name: service["healthcheck"] for name, service in services.items() if "healthcheck" in service}
    assert services.keys() - checks.keys() == {"prometheus", "grafana", "caddy"}, (
        "nothing of the service depends on them"
    )
    assert [name for name, check in checks.items() if check.get("disable")] == ["migrate"]
    del checks["migrate"]
    programs = {name: check["test"][:2] for name, check in checks.items()}
    answers = ["CMD", "/opt/tokenmill/deploy/answers"]
    own = {"postgres": ["CMD", "pg_isready"], "redis": ["CMD", "timeout"]}
    assert programs == {name: own.get(name, answers) for name in checks}
    for name, check in checks.items():
        assert (check["interval"], check["timeout"], check["retries"]) == ("60s", "60s", 3), name


def test_a_hubs_token_is_a_secret_of_workers_alone_and_empty_by_default(services: dict[str, Any]) -> None:
    holders = {name for name, service in services.items() if "secrets" in service}
    assert holders == {name for name in services if name.startswith("worker")}
    assert (ROOT / "deploy" / "no-token").read_bytes() == b""


def test_nothing_waits_for_a_health_check_and_no_process_stays_a_zombie(services: dict[str, Any]) -> None:
    conditions = {each["condition"] for service in services.values() for each in service.get("depends_on", {}).values()}
    assert conditions == {"service_started", "service_completed_successfully"}
    roles = {name: service["depends_on"] for name, service in services.items() if "env_file" in service}
    assert all("postgres" in needs for needs in roles.values()), "else it would be stopped together with them"
    assert all(service["init"] is True for service in services.values())
    assert services["migrate"]["command"] == ["db", "upgrade", "--wait", "300"]


def test_a_check_sees_whether_a_role_answers() -> None:
    port = free_port()

    def is_healthy(path: str = "/metrics") -> bool:
        check = [str(ROOT / "deploy" / "answers"), str(port), path]
        return subprocess.run(check, capture_output=True, check=False, timeout=30).returncode == 0

    assert not is_healthy(), "nothing listens"
    server = serve(CollectorRegistry(), host="127.0.0.1", port=port)
    assert server is not None
    assert is_healthy()
    server.shutdown()
    server.server_close()
    assert not is_healthy()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"", None])
def test_a_check_fails_for_a_refusal_a_closed_connection_and_silence(answer: bytes | None) -> None:
    """Silence ends the check after its 5 s."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        check = [str(ROOT / "deploy" / "answers"), str(listening.getsockname()[1]), "/readyz"]
        with subprocess.Popen(check, stderr=subprocess.DEVNULL) as asking:
            connection, _ = listening.accept()
            with connection:
                request = connection.makefile("rb")
                assert [request.readline(), request.readline()] == [b"GET /readyz HTTP/1.0\r\n", b"\r\n"]
                if answer is not None:
                    connection.sendall(answer)
                    with suppress(OSError):  # it has read enough and is gone
                        connection.shutdown(socket.SHUT_WR)
                assert asking.wait(60) == 1
