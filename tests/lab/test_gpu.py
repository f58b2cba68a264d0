"""Tests of the GPU benchmark: its arithmetic against published figures, its sections on a CPU with tiny shapes."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from lab.gpu.__main__ import all_sections, chosen, main
from lab.gpu.report import as_values, table
from lab.gpu.roofline import (
    H200,
    DeviceLimits,
    attention_bytes,
    decode_step_bytes,
    figures_of,
    ideal_batch,
    ideal_seconds,
    ideal_tokens_per_second,
    idle_share,
    work_of,
)
from lab.gpu.scale import FULL, SMALL
from lab.gpu.sections import Outcome, Row, Section, Status, run_sections
from lab.make_model import SHAPES

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent.parent
LLAMA = figures_of(SHAPES["llama-8b"])


def test_a_step_of_llama_8b_reads_15_gb_and_128_kib_of_each_token() -> None:
    assert pytest.approx(15.0e9, rel=0.002) == LLAMA.weight_bytes
    assert LLAMA.kv_bytes_per_token == 131_072


def test_a_decode_step_at_batch_256_and_context_1024_takes_11_5_ms() -> None:
    seconds = decode_step_bytes(LLAMA, batch=256, context=1024) / H200.bytes_per_second
    assert seconds == pytest.approx(11.5e-3, rel=0.005)
    assert 256 / seconds == pytest.approx(22_297, rel=0.002)


@pytest.mark.parametrize(
    ("prompt", "output", "published"),
    [(128, 128, 26_200), (500, 2000, 17_740), (1000, 1000, 14_103), (2048, 2048, 7_980), (2048, 128, 2_581)],
)
def test_the_ideal_of_many_requests_is_the_published_one(prompt: int, output: int, published: int) -> None:
    work = work_of([(prompt, output)] * 5_000)
    assert ideal_tokens_per_second(LLAMA, work, limits=H200) == pytest.approx(published, rel=0.002)


@pytest.mark.parametrize(("seconds", "share"), [(30.85, 0.73), (34.70, 0.65), (36.91, 0.61)])
def test_measured_runs_of_qwen3_8b_have_the_published_shares(seconds: float, share: float) -> None:
    qwen = replace(SHAPES["llama-8b"], num_hidden_layers=36, intermediate_size=12288, vocab_size=151936)
    work = work_of([(1024, 1024)] * 256)
    ideal = ideal_seconds(figures_of(qwen), work, limits=H200, batch=256)
    assert ideal / seconds == pytest.approx(share, abs=0.006)


def test_few_requests_have_a_slower_ideal_because_the_weights_are_read_for_fewer() -> None:
    work = work_of([(1000, 1000)] * 256)
    assert ideal_batch(LLAMA, work, limits=H200) == 256
    assert ideal_batch(LLAMA, work, limits=H200, max_num_seqs=64) == 64
    assert ideal_tokens_per_second(LLAMA, work, limits=H200) == pytest.approx(12_708, rel=0.002)


def test_the_longer_of_reading_and_computing_decides_about_outputs() -> None:
    work = work_of([(1, 100)] * 4)
    fast_memory = DeviceLimits(bytes_per_second=1e30, flops_per_second=1e12, kv_pool_bytes=1e12)
    fast_products = DeviceLimits(bytes_per_second=1e12, flops_per_second=1e30, kv_pool_bytes=1e12)
    products = 404 * LLAMA.flops_per_token + (2 + 400 * 51) * LLAMA.flops_per_key
    read = 100 * LLAMA.weight_bytes + 400 * 51 * LLAMA.kv_bytes_per_token
    assert ideal_seconds(LLAMA, work, limits=fast_memory, batch=4) == pytest.approx(products / 1e12)
    assert ideal_seconds(LLAMA, work, limits=fast_products, batch=4) == pytest.approx(read / 1e12)


def test_attention_reads_keys_and_values_once() -> None:
    size = attention_bytes(batch=256, context=1024, num_kv_heads=8, head_dim=128, element_bytes=2)
    assert size * 32 == 256 * 1024 * LLAMA.kv_bytes_per_token


def test_idle_time_is_what_no_interval_covers() -> None:
    assert idle_share([(6.0, 8.0), (0.0, 2.0), (1.0, 4.0), (1.5, 2.0)]) == pytest.approx(2 / 8)
    assert idle_share([(3.0, 5.0)]) == 0.0
    with pytest.raises(ValueError, match="nothing ran"):
        idle_share([])


class Clock:
    """Time that passes only when a section advances it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def section(self, name: str, *, estimate: float, takes: float) -> Section:
        def measure() -> list[Row]:
            self.now += takes
            return [Row(what=name, measured=1.0, unit="x")]

        return Section(name=name, estimate_seconds=estimate, measure=measure)


def run(sections: list[Section], clock: Callable[[], float], budget: float | None) -> list[Outcome]:
    heard: list[Outcome] = []
    outcomes = run_sections(sections, time_budget_seconds=budget, report=heard.append, clock=clock)
    assert heard == outcomes
    return outcomes


def test_a_section_without_time_is_skipped_and_a_shorter_one_after_it_runs() -> None:
    clock = Clock()
    sections = [
        clock.section("first", estimate=50.0, takes=70.0),
        clock.section("long", estimate=31.0, takes=1.0),
        clock.section("short", estimate=30.0, takes=1.0),
    ]
    first, long, short = run(sections, clock, budget=100.0)
    assert (first.status, first.seconds) == (Status.DONE, 70.0)
    assert (long.status, long.rows) == (Status.SKIPPED, [])
    assert long.reason == "30 s of the time budget are left, and it may take 31 s"
    assert short.status is Status.DONE
    assert "long: skipped: 30 s of the time budget" in table([first, long, short])


def test_a_failing_section_is_reported_and_the_others_go_on() -> None:
    clock = Clock()

    def fail() -> list[Row]:
        raise RuntimeError("out of\nmemory")

    broken = Section(name="broken", estimate_seconds=1.0, measure=fail)
    outcomes = run([broken, clock.section("next", estimate=1.0, takes=1.0)], clock, budget=None)
    assert [outcome.status for outcome in outcomes] == [Status.FAILED, Status.DONE]
    assert outcomes[0].reason == "RuntimeError: out of memory"
    assert "in fail" in outcomes[0].trace
    assert "broken: failed: RuntimeError: out of memory" in table(outcomes)


def test_memory_is_released_after_every_section_even_a_failing_one() -> None:
    clock, released = Clock(), []

    def fail() -> list[Row]:
        raise RuntimeError

    sections = [Section(name="a", estimate_seconds=1.0, measure=fail), clock.section("b", estimate=1.0, takes=1.0)]
    run_sections(
        sections, time_budget_seconds=None, report=lambda _: None, release=lambda: released.append(1), clock=clock
    )
    assert len(released) == 2


def test_a_figure_is_told_as_a_share_of_its_ideal() -> None:
    row = Row(what="w", measured=85.0, unit="GB/s", ideal=100.0)
    values = as_values([Outcome(name="s", status=Status.DONE, rows=[row, Row(what="w", measured=1.0, unit="x")])])
    assert [row["share"] for row in values[0]["rows"]] == [0.85, None]


def test_the_table_shows_measured_ideal_and_share() -> None:
    row = Row(what="step", measured=2150.0, unit="GB/s", ideal=4300.0, settings="batch 4", note="quiet")
    header, rule, line, *rest = table([Outcome(name="s", status=Status.DONE, rows=[row])]).splitlines()
    assert header.split() == ["section", "what", "measured", "ideal", "share"]
    assert set(rule) == {"-", " "}
    assert re.split(r" {2,}", line) == ["s", "step", "2,150 GB/s", "4,300 GB/s", "50.0%"]
    assert rest == ["", "s, step: batch 4; quiet"]


def test_a_fraction_cuts_the_requests_of_a_load_and_keeps_their_lengths() -> None:
    cut = FULL.longest.cut(0.25)
    assert (cut.count, cut.prompt, cut.max_num_seqs) == (256, FULL.longest.prompt, 1024)
    assert SMALL.long.cut(0.01).count == 1


def test_an_unknown_section_and_a_fraction_out_of_range_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scale", "small", "--sections", "device,nothing"]) == 2
    assert "there is no section 'nothing'; there are device, attention," in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--scale", "small", "--fraction", "0"])


def test_sections_run_in_their_own_order_whatever_the_command_line_says() -> None:
    sections = all_sections(SMALL, torch.device("cpu"), fraction=1.0)
    assert [section.name for section in chosen(sections, ["idle", "device"])] == ["device", "idle"]


def test_the_sizes_of_the_full_scale_fit_the_engine_and_a_call_of_ten_minutes() -> None:
    for shape, load in (
        (FULL.llama, FULL.long),
        (FULL.llama, FULL.longest),
        (FULL.llama, FULL.prompts),
        (FULL.llama, FULL.against),
        (FULL.llama, FULL.heavy),
        (FULL.qwen, FULL.small_model),
        (FULL.opt, FULL.heavy_opt),
    ):
        EngineConfig(model="x", max_num_seqs=load.max_num_seqs, max_num_batched_tokens=load.max_num_batched_tokens)
        assert load.prompt[1] + load.output[1] <= shape.max_position_embeddings
    sections = all_sections(FULL, torch.device("cpu"), fraction=1.0)
    assert all(section.estimate_seconds <= 580 for section in sections)
    halved = all_sections(FULL, torch.device("cpu"), fraction=0.5)
    assert sum(one.estimate_seconds for one in halved) < sum(one.estimate_seconds for one in sections)


@pytest.mark.skipif(torch.cuda.is_available(), reason="full scale is allowed with a CUDA device")
def test_full_scale_without_cuda_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--scale", "full"]) == 2
    assert "Give --scale small" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")  # transformers' and torch's own, from code that is only measured here
def test_every_section_runs_at_the_small_scale_and_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "figures.json"
    code = main(["--scale", "small", "--json", str(path)])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    body = json.loads(path.read_text())
    names = [section.name for section in all_sections(SMALL, torch.device("cpu"), fraction=1.0)]
    assert [section["name"] for section in body["sections"]] == names
    rows = [row for section in body["sections"] for row in section["rows"]]
    assert {section["status"] for section in body["sections"]} == {"done"}
    assert all(row["measured"] > 0 for row in rows)
    assert all(name in captured.out for name in names)


def test_a_failed_section_is_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> list[Row]:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("lab.gpu.__main__.measure_attention", fail)
    assert main(["--scale", "small", "--sections", "device,attention"]) == 1
    captured = capsys.readouterr()
    assert "[device] done" in captured.out
    assert "attention: failed: RuntimeError: no such kernel" in captured.out


def test_it_needs_no_more_than_a_gpu_machine_has() -> None:
    files = [
        *(ROOT / "lab/gpu").glob("*.py"),
        *(ROOT / "lab" / name for name in ("make_model.py", "make_workload.py")),
        ROOT / "benchmarks/static_batching.py",
        ROOT / "lab/peers/adapters/transformers_continuous.py",
    ]
    ours = {"benchmarks", "engine", "kernels", "lab"}
    allowed = ours | {"torch", "transformers", "safetensors"} | set(sys.stdlib_module_names)
    names = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.partition(".")[0])
    assert names <= allowed


def test_figures_with_an_ideal_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    from lab import gpu_plot as plot

    report = tmp_path / "gpu.json"
    assert main(["--scale", "small", "--sections", "device,attention", "--json", str(report)]) == 0
    bars = plot.bars_of([json.loads(report.read_text())])
    assert all(bar.share > 0 for bar in bars)
    picture = tmp_path / "gpu.png"
    assert plot.main([str(report), "-o", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    report.write_text('{"device": "none", "sections": []}')
    assert plot.main([str(report), "-o", str(picture)]) == 1
    assert "measure `attention` or a load" in capsys.readouterr().err
