"""Settings of pipelines, their schedules and runs."""

from __future__ import annotations

from pydantic import Field

from jobs.settings import Settings


class PipelineSettings(Settings):
    tenant_pipelines: int = Field(default=100, ge=0)
    """Pipelines of a tenant, and as many schedules."""
    tenant_queued_runs: int = Field(default=1000, ge=0)
    """Runs of a tenant's pipelines that wait, where more are asked for."""
    run_template_seconds: float = Field(default=600.0, gt=0)
    """CPU time that the prompts of one run of a pipeline may take to render, all rows of all its steps together; a run
    that takes more fails with `template_cpu_exceeded`."""
