"""`tokenmill bench replay day`: its options, and what it prints. Simulates nothing itself."""

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
    """Declare what `run` reads."""
    parser.add_argument("day", type=Path, metavar="DAY.jsonl", help="what `tokenmill bench record` wrote")
    parser.add_argument("--model", help="whose queue; needed where the day has several")
    parser.add_argument("--recorded-workers", type=natural, help="that there were, where the day does not know")
    parser.add_argument("--workers", type=natural, help="as many instead")
    parser.add_argument("--policy", choices=list(PolicyName), help="of the engines instead of priority")
    parser.add_argument(
        "--weight", type=_weight, action="append", default=[], metavar="TENANT=NUMBER", help="a tenant's share instead"
    )
    parser.add_argument(
        "--class", type=_class, action="append", default=[], dest="classes", metavar="TENANT=CLASS",
        help="of all of a tenant's batches instead of their own",
    )  # fmt: skip
    parser.add_argument(
        "--budget", type=_budget, action="append", default=[], dest="budgets", metavar="TENANT=TOKENS",
        help="all that a tenant may use in the day; what has no room waits",
    )  # fmt: skip
    parser.add_argument("--cost", type=Path, help="JSON that calibrate printed; without it learned from the day")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    add_limits(parser, num_kv_blocks=DaySettings(num_workers=1).num_kv_blocks)


def run(arguments: argparse.Namespace, *, cost: CostModel | None) -> None:
    """Replay the day as it was and, where settings are given, with those; print what became of it each time."""
    day = read_day(arguments.day, model=arguments.model)
    num_workers = arguments.recorded_workers or day.num_workers
    if num_workers is None:
        raise DayError(f"Nobody knows any more how many workers {day.model} had. Give --recorded-workers.")
    tenants = {batch.tenant for batch in day.batches}
    for option, pairs in (
        ("--weight", arguments.weight), ("--class", arguments.classes), ("--budget", arguments.budgets)
    ):  # fmt: skip
        for tenant, _ in pairs:
            if tenant not in tenants:
                raise DayError(f"{option} names {tenant!r}, who has no batch; there are {', '.join(sorted(tenants))}.")
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
        raise argparse.ArgumentTypeError(f"{name!r} is given; it must be one of {', '.join(Priority)}.")
    return tenant, Priority(name)


def _budget(text: str) -> tuple[str, int]:
    tenant, number = _pair(text)
    return tenant, natural(number)


def _pair(text: str) -> tuple[str, str]:
    tenant, separator, value = text.rpartition("=")
    if not separator or not tenant:
        raise argparse.ArgumentTypeError(f"{text!r} is given; it must be TENANT=VALUE.")
    return tenant, value
