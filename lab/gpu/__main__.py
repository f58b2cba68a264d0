"""Run all measurements on one GPU: prints a table, and with `--json FILE` writes all figures.

python -m lab.gpu [--sections a,b] [--scale small] [--time-budget 570] [--fraction 0.5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.arguments import fraction, names, positive
from lab.gpu.loads import measure_against_transformers, measure_load, measure_static
from lab.gpu.parts import measure_attention, measure_device, measure_forward, measure_tiles
from lab.gpu.report import as_values, brief, table
from lab.gpu.scale import SCALES, HeavyLoad, Load, Scale
from lab.gpu.sections import Outcome, Row, Section, Status, run_sections
from lab.gpu.steps import measure_decode_step, measure_idle
from lab.gpu.timing import device_name, release_memory
from lab.make_model import OptShape, Shape

_LOADING_SECONDS = 12.0
"""For weights and compiling: 5 to 15 s on an H200, 2026-11-26."""

_SMALL_ESTIMATE_SECONDS = 1.0


def all_sections(scale: Scale, device: torch.device, *, fraction: float) -> list[Section]:
    """Return every section, cheap and informative ones first, the longest last.

    Estimates at full scale are twice the roofline's time, plus loading.
    """

    def section(name: str, seconds: float, measure: Callable[[], list[Row]], *, num_loads: int = 1) -> Section:
        estimate = seconds + num_loads * _LOADING_SECONDS if scale.needs_cuda else _SMALL_ESTIMATE_SECONDS
        return Section(name=name, estimate_seconds=estimate, measure=measure)

    def run(name: str, load: Load, seconds: float, *, shape: Shape) -> Section:
        measure = partial(measure_load, scale, device, shape=shape, load=load.cut(fraction))
        return section(name, seconds * fraction, measure)

    def static(name: str, load: HeavyLoad, seconds: float, *, shape: Shape | OptShape) -> Section:
        return section(name, seconds, partial(measure_static, device, shape=shape, load=load), num_loads=2)

    against = partial(measure_against_transformers, scale, device, load=scale.against.cut(fraction))
    return [
        section("device", 2, partial(measure_device, scale, device), num_loads=0),
        section("attention", 5, partial(measure_attention, scale, device), num_loads=0),
        section("tiles", 5, partial(measure_tiles, scale, device), num_loads=0),
        section("forward", 5, partial(measure_forward, scale, device)),
        section("decode-step", 5, partial(measure_decode_step, scale, device)),
        section("idle", 10, partial(measure_idle, scale, device), num_loads=3),
        run("1000-1000", scale.long, 40, shape=scale.llama),
        run("qwen3-0.6b", scale.small_model, 10, shape=scale.qwen),
        static("static", scale.heavy, 60, shape=scale.llama),
        section("transformers", 110 * fraction, against, num_loads=2),
        run("2048-128", scale.prompts, 100, shape=scale.llama),
        static("static-opt", scale.heavy_opt, 100, shape=scale.opt),
        run("500-2000", scale.longest, 230, shape=scale.llama),
    ]


def main(argv: list[str] | None = None) -> int:
    """Read the command line, measure and print; return 1 if a section failed, 2 for a wrong command line."""
    has_cuda = torch.cuda.is_available()
    arguments = _parser(has_cuda=has_cuda).parse_args(argv)
    device = torch.device("cuda" if has_cuda else "cpu")
    scale = SCALES[arguments.scale]
    try:
        sections = chosen(all_sections(scale, device, fraction=arguments.fraction), arguments.sections)
        if scale.needs_cuda and not has_cuda:
            raise ValueError("torch finds no CUDA device. Give --scale small to try the command without one.")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    head = f"{device_name(device)}; scale {scale.name}; fraction {arguments.fraction:g} of each load's requests"
    print(head, flush=True)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
    completed: list[Outcome] = []

    def report(outcome: Outcome) -> None:
        completed.append(outcome)
        print(brief(outcome), flush=True)
        if arguments.json is not None:  # after every section: the machine may be lost before the last
            body = {"device": device_name(device), "scale": scale.name, "fraction": arguments.fraction}
            arguments.json.write_text(json.dumps({**body, "sections": as_values(completed)}, indent=2) + "\n")

    outcomes = run_sections(sections, time_budget_seconds=arguments.time_budget, report=report, release=release_memory)
    print(f"\n{head}\n{table(outcomes)}")
    failed = [outcome for outcome in outcomes if outcome.status is Status.FAILED]
    for outcome in failed:
        print(f"\n{outcome.name} failed:\n{outcome.trace}", file=sys.stderr)
    return 1 if failed else 0


def chosen(sections: list[Section], names: list[str] | None) -> list[Section]:
    """Return the named sections in their own order, or all without names. Raises ValueError for an unknown name."""
    if names is None:
        return sections
    known = [section.name for section in sections]
    for name in names:
        if name not in known:
            raise ValueError(f"there is no section {name!r}; there are {', '.join(known)}.")
    return [section for section in sections if section.name in names]


def _parser(*, has_cuda: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokenmill bench gpu", description=__doc__)
    parser.add_argument("--sections", type=names, metavar="A,B", help="only these; default: all")
    parser.add_argument("--scale", choices=sorted(SCALES), default="full" if has_cuda else "small")
    parser.add_argument(
        "--time-budget", type=positive, metavar="SECONDS", help="skip a section when less is left than its estimate"
    )
    parser.add_argument(
        "--fraction", type=fraction, default=1.0, help="share of each load's requests, above 0 and at most 1"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file after each section")
    return parser


if __name__ == "__main__":
    sys.exit(main())
