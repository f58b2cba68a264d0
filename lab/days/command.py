"""`tokenmill bench replay day`: its options and its output."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.arguments import add_limits, natural, positive
from benchmarks.day import DayError, read_day
from engine.config import PolicyName
from jobs.states import Priority
from lab.days.replay import DaySettings, happened, learned_cost, replayed
from lab.days.tables import as_json, tables
from lab.simulation.cost import CostModel


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `run`."""
    parser.add_argument("day", type=Path, metavar="DAY.jsonl", help="file written by `tokenmill bench record`")
    parser.add_argument("--model", help="model to replay; needed if the day has several")
    parser.add_argument("--recorded-workers", type=natural, help="number of workers of the day, if it was not recorded")
    parser.add_argument("--workers", type=natural, help="number of workers to simulate instead")
    parser.add_argument("--policy", choices=list(PolicyName), help="policy of the engines instead of priority")
    parser.add_argument(
        "--weight",
        type=_weight,
        action="append",
        default=[],
        metavar="TENANT=NUMBER",
        help="weight of a tenant instead of its own",
    )
    parser.add_argument(
        "--class", type=_class, action="append", default=[], dest="classes", metavar="TENANT=CLASS",
        help="class of all of a tenant's batches instead of their own",
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=_budget, action="append", default=[], dest="budgets", metavar="TENANT=TOKENS",
        help="tokens that a tenant may use in the day; lines beyond wait",
    )  # fmt: skip
    parser.add_argument("--cost", type=Path, help="JSON printed by calibrate; default: fitted to the day")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    add_limits(parser, num_kv_blocks=DaySettings(num_workers=1).num_kv_blocks)


def run(arguments: argparse.Namespace, *, cost: CostModel | None) -> None:
    """Replay the day as it was and, if settings are given, with those; print the outcomes."""
    day = read_day(arguments.day, model=arguments.model)
    num_workers = arguments.recorded_workers or day.num_workers
    if num_workers is None:
        raise DayError(f"The number of workers of {day.model} was not recorded. Give --recorded-workers.")
    tenants = {batch.tenant for batch in day.batches}
    for option, pairs in (
        ("--weight", arguments.weight), ("--class", arguments.classes), ("--budget", arguments.budgets)
    ):  # fmt: skip
        for tenant, _ in pairs:
            if tenant not in tenants:
                raise DayError(
                    f"{option} names {tenant!r}, which has no batch; there are {', '.join(sorted(tenants))}."
                )
    limits = {name: getattr(arguments, name) for name in ("max_num_seqs", "max_num_batched_tokens", "num_kv_blocks")}
    as_it_was = DaySettings(num_workers=num_workers, **limits)
    changed = DaySettings(
        num_workers=arguments.workers or num_workers,
        policy=PolicyName(arguments.policy or PolicyName.PRIORITY),
        weights=dict(arguments.weight),
        classes=dict(arguments.classes),
        budgets=dict(arguments.budgets),
        **limits,
    )
    cost = cost or learned_cost(day.batches)
    runs = {"happened": happened(day, num_workers=num_workers), "replayed": replayed(day, as_it_was, cost)}
    if changed != as_it_was:
        runs["changed"] = replayed(day, changed, cost)
    print(tables(runs))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(as_json(runs), indent=2) + "\n")


def _weight(text: str) -> tuple[str, float]:
    tenant, number = _pair(text)
    return tenant, positive(number)


def _class(text: str) -> tuple[str, Priority]:
    tenant, name = _pair(text)
    if name not in list(Priority):
        raise argparse.ArgumentTypeError(f"{name!r} is given; it must beone of {', '.join(Priority)}.")
    return tenant, Priority(name)


def _budget(text: str) -> tuple[str, int]:
    tenant, number = _pair(text)
    return tenant, natural(number)


def _pair(text: str) -> tuple[str, str]:
    tenant, separator, value = text.rpartition("=")
    if not separator or not tenant:
        raise argparse.ArgumentTypeError(f"{text!r} is given; it must beTENANT=VALUE.")
    return tenant, value
