"""Draw the study's plots as PNG files. Only this file needs matplotlib, which is not a dependency of the product."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter

from engine.config import PolicyName
from lab.study import Run

COLORS = {
    PolicyName.FCFS: "#6b7280",
    PolicyName.PRIORITY: "#d97706",
    PolicyName.DEADLINE: "#dc2626",
    PolicyName.SHORTEST: "#7c3aed",
    PolicyName.FAIR: "#059669",
    PolicyName.PREFIX: "#2563eb",
}
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9ca3af",
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
}
_NOTE = "Simulated: real scheduler and blocks, step times from the rooflines of an H200 with an 8B model."


def draw(azure: list[Run], tenants: list[Run], folder: Path) -> list[Path]:
    """Write every plot into the folder and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    # Without tenants and shared prefixes these two equal first come, first served, and would hide its line.
    distinct = [run for run in azure if run.policy not in (PolicyName.FAIR, PolicyName.PREFIX)]
    figures = {
        "scheduling-latency.png": latency_figure(distinct),
        "scheduling-urgency.png": urgency_figure(distinct),
        "scheduling-tenants.png": tenant_figure(tenants),
    }
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=130)
    return [folder / name for name in figures]


def latency_figure(runs: list[Run]) -> Figure:
    """Draw the cumulative share of requests over the time to the first and to the last token, for each policy."""
    figure, axes = _axes("Azure conversation trace: how long requests wait", num_columns=2)
    for axis, title in zip(axes, ("Arrival to first token", "Arrival to last token"), strict=True):
        for run in runs:
            seconds = run.first_token_seconds if axis is axes[0] else run.completion_seconds
            shares = np.arange(1, len(seconds) + 1) / len(seconds)
            axis.plot(np.sort(seconds), shares, color=COLORS[run.policy], label=run.policy, linewidth=1.6)
        axis.set(title=title, xscale="log", xlabel="seconds", ylabel="share of requests", ylim=(0, 1.01))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes[1].legend(loc="upper left")
    return figure


def urgency_figure(runs: list[Run]) -> Figure:
    """Draw the first-token time of each priority class, and the share of deadlines met, for each policy."""
    figure, axes = _axes("Azure conversation trace: who waits, and who is in time", num_columns=2)
    classes = sorted({request.priority for request in runs[0].requests})
    shades = ["#b45309", "#f59e0b", "#fde68a"]
    positions = np.arange(len(runs))
    for index, (level, shade) in enumerate(zip(classes, shades, strict=True)):
        values = []
        for run in runs:
            own = np.array([request.priority for request in run.asked()]) == level
            values.append(float(np.quantile(run.first_token_seconds[own], 0.95)))
        axes[0].bar(positions + 0.26 * (index - 1), values, width=0.24, color=shade, label=f"priority {level}")
    axes[0].set(title="95th percentile of arrival to first token", ylabel="seconds", yscale="log")
    axes[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[0].legend(loc="upper right", ncols=3, fontsize=9)
    axes[0].set_ylim(top=axes[0].get_ylim()[1] * 3)
    shares = [run.share_in_time() for run in runs]
    bars = axes[1].bar(positions, shares, width=0.6, color=[COLORS[run.policy] for run in runs])
    axes[1].bar_label(bars, labels=[f"{share:.0%}" for share in shares], padding=2)
    axes[1].set(title="Requests that end by their deadline", ylim=(0, 1.08))
    axes[1].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    for axis in axes:
        axis.set_xticks(positions, [str(run.policy) for run in runs])
        axis.grid(visible=False, axis="x")
    return figure


def tenant_figure(runs: list[Run]) -> Figure:
    """Draw each tenant's 95th percentile of queue time, first come first served against fair."""
    figure, (axis,) = _axes("Tenant trace: queue time of each tenant, 95th percentile", num_columns=1)
    runs_by_policy = {run.policy: run for run in runs if run.policy in (PolicyName.FCFS, PolicyName.FAIR)}
    queues = {policy: run.by_tenant(run.queue_seconds) for policy, run in runs_by_policy.items()}
    totals: dict[str, int] = {}
    for request in runs[0].requests:
        size = request.num_prompt_tokens + request.num_output_tokens
        totals[request.tenant] = totals.get(request.tenant, 0) + size
    order = sorted(totals, key=lambda tenant: -totals[tenant])
    positions = np.arange(len(order))
    ends = {policy: [np.quantile(own[tenant], 0.95) for tenant in order] for policy, own in queues.items()}
    axis.vlines(positions, ends[PolicyName.FCFS], ends[PolicyName.FAIR], color="#d1d5db", linewidth=3, zorder=1)
    for policy in runs_by_policy:
        axis.scatter(positions, ends[policy], s=52, color=COLORS[policy], label=policy, zorder=2)
    shares = {tenant: total / sum(totals.values()) for tenant, total in totals.items()}
    names = [f"{tenant}\n{shares[tenant]:.1%}" if shares[tenant] >= 5e-4 else tenant for tenant in order]
    axis.set_xticks(positions, names, fontsize=8)
    axis.set(yscale="log", ylabel="seconds", xlabel="tenant, and its share of all tokens")
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.grid(visible=False, axis="x")
    axis.legend(loc="upper right", ncols=2)
    return figure


def _axes(title: str, *, num_columns: int) -> tuple[Figure, list[Axes]]:
    mpl.rcParams.update(STYLE)
    figure = Figure(figsize=(10.5, 4.4), layout=ConstrainedLayoutEngine(rect=(0.0, 0.035, 1.0, 0.965)))
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=13)
    figure.text(0.99, 0.005, _NOTE, ha="right", va="bottom", fontsize=7.5, color="#6b7280")
    axes = figure.subplots(1, num_columns, squeeze=False)[0]
    return figure, list(axes)
