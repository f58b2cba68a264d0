"""Tests of deploy/prometheus: rules from the declared meters, accepted by Prometheus where that is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from jobs.telemetry.meters import counter, gauge
from tests.deploy.prometheus_rules import RULES, rule, rules, rules_file

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian's package prometheus)")


def test_the_file_is_what_the_generator_writes() -> None:
    assert RULES.read_text(encoding="utf-8") == rules_file(), "run: python -m tests.deploy.prometheus_rules"


def test_an_alert_is_an_expression_a_wait_and_a_reason() -> None:
    made = rule(gauge("store_up", "says", alert="`tokenmill_store_up == 0` for a minute: uploads fail"))
    assert made == {
        "alert": "TokenmillStoreUp",
        "expr": "tokenmill_store_up == 0",
        "for": "1m",
        "annotations": {"summary": "Uploads fail"},
    }
    made = rule(gauge("store_up", "says", alert="`tokenmill_store_up == 0` for 10 minutes: uploads fail"))
    assert made["for"] == "10m"
    assert "for" not in rule(counter("losses", "says", alert="`tokenmill_losses_total > 0`: look"))


def test_an_alert_that_is_no_expression_is_refused() -> None:
    with pytest.raises(ValueError, match="tokenmill_losses_total"):
        rule(counter("losses", "says", alert="when there are losses"))


def test_every_alert_has_a_name_of_its_own() -> None:
    names = [each["alert"] for each in rules()["groups"][0]["rules"]]
    assert len(names) == len(set(names)) > 10


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    assert promtool("check", "rules", RULES).returncode == 0


@needs_promtool
def test_prometheus_accepts_the_scrape_configuration() -> None:
    assert promtool("check", "config", RULES.with_name("prometheus.yml")).returncode == 0


def test_every_role_of_compose_is_scraped_and_nothing_else() -> None:
    root = RULES.parents[2]
    services = yaml.safe_load((root / "docker-compose.yml").read_text())["services"]
    roles = {name for name, each in services.items() if "build" in each} - {"migrate"}
    jobs = yaml.safe_load(RULES.with_name("prometheus.yml").read_text())["scrape_configs"]
    names = {name for job in jobs for each in job["dns_sd_configs"] for name in each["names"]}
    assert names == roles


@needs_promtool
def test_alerts_fire_for_what_they_describe_and_not_before() -> None:
    cases = RULES.with_name("rules_test.yml")
    outcome = promtool("test", "rules", cases)
    assert outcome.returncode == 0, outcome.stdout


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False, timeout=120)
