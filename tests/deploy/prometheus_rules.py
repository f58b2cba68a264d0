"""Write Prometheus' rules, and the chart's, from the declared meters: `python -m tests.deploy.prometheus_rules`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from jobs.telemetry.meters import Meter
from tests.jobs.telemetry.metrics_page import sections

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
RULES_OF_CHART = DEPLOY / "helm" / "tokenmill" / "files" / "rules.yml"
HEAD = "# Alerts, written by `python -m tests.deploy.prometheus_rules` from the declared meters (docs/metrics.md).\n"
_ALERT = re.compile(
    r"`(?P<expression>[^`]+)`(?: for (?P<minutes>a minute|\d+ minutes))?: (?P<reason>.+)", flags=re.DOTALL
)


def rules() -> dict[str, Any]:
    """Return Prometheus' rules: an alert for each meter that declares one."""
    meters = [meter for found in sections().values() for meter in found]
    return {"groups": [{"name": "tokenmill", "rules": [rule(meter) for meter in unique(meters)]}]}


def unique(meters: list[Meter]) -> Iterator[Meter]:
    """Yield the meters with an alert, once each."""
    yield from {meter.name: meter for meter in meters if meter.alert is not None}.values()


def rule(meter: Meter) -> dict[str, Any]:
    """Return the alert of a meter. Raise ValueError if it is not written as an expression and its reason."""
    alert = _ALERT.fullmatch(meter.alert or "")
    if alert is None:
        raise ValueError(f"{meter.name}: the alert is {meter.alert!r}; write it as '`PromQL`: reason'")
    reason = alert["reason"]
    return {
        "alert": "".join(part.capitalize() for part in meter.name.split("_")),
        "expr": alert["expression"],
        **_wait(alert["minutes"]),
        "annotations": {"summary": reason[0].upper() + reason[1:]},
    }


def _wait(minutes: str | None) -> dict[str, str]:
    return {} if minutes is None else {"for": f"{minutes.split()[0].replace('a', '1')}m"}


def rules_file() -> str:
    return HEAD + str(yaml.safe_dump(rules(), sort_keys=False, allow_unicode=True, width=1000))


if __name__ == "__main__":
    for path in (RULES, RULES_OF_CHART):
        path.write_text(rules_file(), encoding="utf-8")
