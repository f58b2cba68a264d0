"""Tests of docker-compose.yml as a file: secrets, rights and ports of services, and the settings that it reads."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from features.documents.settings import DocumentSettings
from tests.deploy.chart_schema import CHART
from tests.deploy.containers.composed import PASSWORDS
from tests.jobs.configuration_page import ROOT, variables

TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
EXAMPLE = (ROOT / ".env.example").read_text(encoding="utf-8")
SERVICES: dict[str, Any] = yaml.safe_load(TEXT)["services"]
READ = set(re.findall(r"\$\{([A-Z0-9_]+)", TEXT)) | {"COMPOSE_PROFILES"}
FURTHER_WORKERS = {"worker-2", "worker-3", "worker-4"}


@pytest.mark.parametrize(
    ("name", "owners"),
    [
        ("TOKENMILL_DATABASE_SCALER_URL", {"migrate"}),
        ("TOKENMILL_DATABASE_OWNER_URL", {"migrate"}),
        ("TOKENMILL_DATABASE_PREPARE_URL", {"migrate"}),
        *((password, set()) for password in PASSWORDS),
    ],
)
def test_a_url_or_password_of_env_reaches_only_its_owner(name: str, owners: set[str]) -> None:
    """All roles get `.env`, so what others must not have is blank in their own environment, which takes precedence."""
    roles = {role: each["environment"] for role, each in SERVICES.items() if each.get("env_file")}
    assert {role for role, environment in roles.items() if environment[name] != ""} == owners


def test_a_servers_key_is_a_secret_of_the_workers_that_may_ask_one() -> None:
    assert {name for name, each in SERVICES.items() if "engine_key" in each.get("secrets", [])} == FURTHER_WORKERS
    assert all(
        name in yaml.safe_load(TEXT)["secrets"] for each in SERVICES.values() for name in each.get("secrets", [])
    )


def test_rights_and_ports_are_those_that_the_security_page_names() -> None:
    assert {name for name, each in SERVICES.items() if "ALL" not in each["cap_drop"] or "cap_add" in each} == {"caddy"}
    ports = {name: each["ports"] for name, each in SERVICES.items() if "ports" in each}
    everywhere = {name for name, given in ports.items() if not all("127.0.0.1" in port for port in given)}
    assert everywhere == {"caddy"}
    published = {port.rpartition(":")[2] for given in ports.values() for port in given} - {"8000"}
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert (
        {port for port in published if re.search(rf"\b{port}\b", security)}
        == published
        == {*("80", "443"), *("9090", "3000")}
    )


def test_monitoring_is_of_a_full_version_and_has_no_user() -> None:
    for name in ("prometheus", "grafana"):
        assert re.fullmatch(r"\S+:v?\d+\.\d+\.\d+", SERVICES[name]["image"])
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
    assert environment["GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION"] == "true"


def test_every_setting_of_compose_is_described_and_in_the_example() -> None:
    assert set(PASSWORDS) < READ
    assert READ - set(PASSWORDS) <= variables().keys()
    examples = set(re.findall(r"^(?:# )?([A-Z0-9_]+)=", EXAMPLE, flags=re.MULTILINE))
    assert READ - examples == {"TOKENMILL_METRICS_PORT", "TOKENMILL_MODEL_4"}


def test_the_memory_of_a_prepare_worker_is_that_of_its_readers_and_of_one_more() -> None:
    processes = DocumentSettings.model_fields["prepare_processes"].default
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    needed = 2 * (processes + 1)
    assert values["prepare"]["resources"]["limits"]["memory"] == f"{needed}Gi"
    assert f"TOKENMILL_PREPARE_MEMORY={needed}g\n" in EXAMPLE
