"""Fixtures of tests of pages."""

from __future__ import annotations

from tests.api.dashboard.fixtures import browse, deployment, operator_key
