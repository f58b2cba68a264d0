"""Replay a trace under every policy on one simulated GPU and compare the latencies.

All figures are the cost model's; nothing here is measured on a device. plots.py draws them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.config import PolicyName, SchedulerConfig
from lab.gpu.roofline import H200
from lab.simulation.cost import CostModel, RooflineCost
from lab.simulation.sequences import SimulatedRequest
from lab.simulation.simulator import SimulationResult, Simulator
from lab.traces import TraceRow, requests_of

H200_LLAMA_8B = RooflineCost(
    bytes_per_second=H200.bytes_per_second,
    operations_per_second=H200.flops_per_second,
    efficiency=0.61,
    weight_bytes=15.0e9,
    kv_bytes_per_token=131_072.0,
    weight_count=6.98e9,
    attention_width=32 * 32 * 128.0,
    logit_row_operations=2.0 * 4096 * 128_256,
)
"""An H200 with a Llama of 8 billion parameters (32 layers, 32/8 heads of 128, vocabulary 128,256) in bf16.

The efficiency is an assumption: what engines with Triton attention reached at 256 requests of 1,024 tokens in and out.
"""
NUM_KV_BLOCKS = 52_000
"""Blocks of 16 tokens, 128 KiB per token: the 109 GB that 16 GB of weights and a step's buffers leave of 90 % of 141
GB."""
MAX_NUM_SEQS = 1024
MAX_NUM_BATCHED_TOKENS = 8192
MAX_MODEL_LEN = 32_768
SPEED_UP = 4.5
TENANTS_SPEED_UP = 3.0
QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One replay: the policy, the requests in order of arrival, and the result."""

    policy: PolicyName
    requests: list[SimulatedRequest]
    result: SimulationResult

    @property
    def queue_seconds(self) -> npt.NDArray[np.float64]:
        """Return the time from arrival to the first computed token, in the order of `result.number`."""
        return self.result.start - self.result.arrival

    @property
    def first_token_seconds(self) -> npt.NDArray[np.float64]:
        """Return the time from arrival to the first generated token."""
        return self.result.first_token - self.result.arrival

    @property
    def completion_seconds(self) -> npt.NDArray[np.float64]:
        """Return the time from arrival to the last token."""
        return self.result.end - self.result.arrival

    def asked(self) -> list[SimulatedRequest]:
        """Return the requests that ran, in the order of `result.number`."""
        return [self.requests[number] for number in self.result.number]

    def share_in_time(self) -> float:
        """Return the share of requests that ended by their deadline."""
        deadlines = np.array([request.deadline for request in self.asked()], dtype=np.float64)
        return float(np.mean(self.result.end <= deadlines))

    def by_tenant(self, seconds: npt.NDArray[np.float64]) -> dict[str, npt.NDArray[np.float64]]:
        """Split an array over the requests by tenant."""
        own: dict[str, list[float]] = defaultdict(list)
        for request, value in zip(self.asked(), seconds.tolist(), strict=True):
            own[request.tenant].append(value)
        return {tenant: np.array(values) for tenant, values in own.items()}


def replay(
    requests: Iterable[SimulatedRequest],
    policy: PolicyName,
    *,
    cost: CostModel = H200_LLAMA_8B,
    num_kv_blocks: int = NUM_KV_BLOCKS,
    max_num_seqs: int = MAX_NUM_SEQS,
    max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS,
    enable_prefix_caching: bool = True,
) -> Run:
    """Replay requests under one policy."""
    all_requests = list(requests)
    config = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=MAX_MODEL_LEN,
        enable_prefix_caching=enable_prefix_caching,
        policy=policy,
    )
    result = Simulator(cost, config, num_kv_blocks=num_kv_blocks).run(all_requests)
    return Run(policy=policy, requests=all_requests, result=result)


def replay_all(rows: list[TraceRow], *, speed_up: float, count: int | None = None) -> list[Run]:
    """Replay a trace, or its first `count` requests, under every policy, with the same requests."""
    return [replay(requests_of(rows, speed_up=speed_up, count=count), policy) for policy in PolicyName]


def render(azure: list[Run], tenants: list[Run]) -> str:
    """Return every table of the study."""
    return "\n".join(
        [
            "### Azure conversation trace\n",
            latency_table(azure),
            use_table(azure),
            priority_table(azure),
            "### Tenant trace\n",
            latency_table(tenants),
            use_table(tenants),
            tenant_table(tenants),
        ]
    )


def latency_table(runs: list[Run]) -> str:
    """Return p50 / p95 / p99 of the four latencies for each run, in Markdown; seconds, gaps in milliseconds."""
    head = ["policy", "queue time, s", "first token, s", "between tokens, ms", "completion, s"]
    rows = []
    for run in runs:
        gaps = " / ".join(f"{run.result.gaps.quantile(share) * 1e3:.0f}" for share in QUANTILES)
        columns = [_quantiles(run.queue_seconds), _quantiles(run.first_token_seconds), gaps]
        rows.append([run.policy, *columns, _quantiles(run.completion_seconds)])
    return _table(head, rows)


def use_table(runs: list[Run]) -> str:
    """Return throughput, batch, cache and deadline figures for each run, in Markdown."""
    head = ["policy", "output tok/s", "sequences a step", "preemptions", "prefix tokens found", "KV waste", "in time"]
    rows = []
    for run in runs:
        counters, cache = run.result.counters, run.result.cache
        prompt_tokens = sum(request.num_prompt_tokens for request in run.requests)
        rows.append(
            [
                run.policy,
                f"{run.result.output_tokens_per_second:,.0f}",
                f"{counters.mean_batch:.0f}",
                str(counters.num_preemptions),
                f"{cache.num_cached_tokens / prompt_tokens:.1%}",
                f"{cache.waste:.2%}",
                f"{run.share_in_time():.1%}",
            ]
        )
    return _table(head, rows)


def priority_table(runs: list[Run]) -> str:
    """Return the time to the first token of each priority class for each run, in Markdown."""
    classes = sorted({request.priority for request in runs[0].requests})
    rows = []
    for run in runs:
        own = np.array([request.priority for request in run.asked()])
        rows.append([run.policy, *(_quantiles(run.first_token_seconds[own == level]) for level in classes)])
    return _table(["policy", *(f"first token of priority {level}, s" for level in classes)], rows)


def tenant_table(runs: list[Run]) -> str:
    """Return each tenant's load and the 95th percentile of its queue time under each policy, in Markdown."""
    totals: dict[str, int] = defaultdict(int)
    counts: dict[str, int] = defaultdict(int)
    for request in runs[0].requests:
        totals[request.tenant] += request.num_prompt_tokens + request.num_output_tokens
        counts[request.tenant] += 1
    queues = [run.by_tenant(run.queue_seconds) for run in runs]
    rows = [
        [
            tenant,
            f"{counts[tenant]:,}",
            f"{totals[tenant] / sum(totals.values()):.1%}",
            *(f"{np.quantile(own[tenant], 0.95):.2f}" for own in queues),
        ]
        for tenant in sorted(totals, key=lambda tenant: -totals[tenant])
    ]
    return _table(["tenant", "requests", "of all tokens", *(f"{run.policy}, s" for run in runs)], rows)


def _quantiles(seconds: npt.NDArray[np.float64]) -> str:
    return " / ".join(f"{np.quantile(seconds, share):.2f}" for share in QUANTILES)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
