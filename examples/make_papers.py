"""Write documents as files, in layouts the demo model was not trained on: `python -m examples.make_papers FOLDER`.

Every fifth is a mail, the others PDFs; `gold.jsonl` beside the folder has their fields. With `--harmed` some values
cannot be read, or are contradicted: `harms.jsonl` lists them. Pure functions of a seed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.documents import draw_facts
from examples.field_requests import gold, mail_of, shown
from examples.harms import Harms, draw_harms, harm_page, harmed_gold
from examples.paper_layouts import HELD_OUT
from lab.extraction.pdf_writer import write_pdf

_MAIL_EVERY = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A file and its fields; None for a field that it does not state."""

    name: str
    content: bytes
    gold: dict[str, tuple[Any, str] | None]
    """The value and the quote of each field."""
    harms: Harms

    @property
    def fields(self) -> dict[str, Any]:
        return {name: field and field[0] for name, field in self.gold.items()}


def make_papers(count: int, *, seed: int = 0, harm_share: float = 0.0) -> Iterator[Paper]:
    """Yield documents with `harm_share` of their values harmed; each depends only on the seed and its own number."""
    for index in range(count):
        rng = random.Random(f"papers/{seed}/{index}")
        facts = draw_facts(rng)
        is_mail = index % _MAIL_EVERY == _MAIL_EVERY - 1
        harms = draw_harms(facts, rng, share=harm_share) if harm_share else {}
        if is_mail:
            name, content = f"document-{index:04d}.eml", mail_of(facts, rng, harms=harms)
        else:
            page = rng.choice(HELD_OUT)(facts, rng)
            name, content = f"document-{index:04d}.pdf", write_pdf([harm_page(page, facts, harms, rng)])
        text = shown(content, name)
        yield Paper(name=name, content=content, gold=harmed_gold(gold(facts, text), text, facts, harms), harms=harms)


def write_papers(folder: Path, count: int, *, seed: int = 0, harm_share: float = 0.0) -> None:
    """Write `count` documents below `folder`, `gold.jsonl` beside it, and with harms `harms.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    papers = list(make_papers(count, seed=seed, harm_share=harm_share))
    for paper in papers:
        (folder / paper.name).write_bytes(paper.content)
    _write_lines(folder, "gold.jsonl", ((paper, {"fields": paper.fields}) for paper in papers))
    if harm_share:
        _write_lines(folder, "harms.jsonl", ((paper, {"harms": _harms_json(paper.harms)}) for paper in papers))


def _write_lines(folder: Path, name: str, lines: Iterable[tuple[Paper, dict[str, Any]]]) -> None:
    with (folder.parent / name).open("w", encoding="utf-8") as file:
        for paper, values in lines:
            print(json.dumps({"document": str(folder / paper.name), **values}, ensure_ascii=False), file=file)


def _harms_json(harms: Harms) -> dict[str, Any]:
    """Return the harm of each value, and the second value of a contradicted one."""
    return {name: {"harm": each.harm.value, "other": each.other} for name, each in harms.items()}


def main() -> None:
    """Write documents with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--harmed", type=float, default=0.0, help="share of the values, such as 0.2")
    arguments = parser.parse_args()
    write_papers(arguments.folder, arguments.documents, seed=arguments.seed, harm_share=arguments.harmed)


if __name__ == "__main__":
    main()
