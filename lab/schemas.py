"""Measure how many JSON schemas of a folder compile, why others do not, and whether generated texts are valid.

Every schema is compiled as for a line; random walks over its token masks then write texts, which jsonschema_rs checks
against the original schema, with the supported formats. Uses no model and no server, only a tokenizer.

python -m lab.schemas FOLDER --count 300 --seed 0
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
from tokenizers import Tokenizer

from benchmarks.arguments import natural
from engine.errors import InvalidParamsError, InvalidRequestError
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.grammar import GrammarTokens, MaskFiller
from engine.grammars.matcher import GrammarMatcher
from engine.structured import StructuredOutput

_DEMO = Path(__file__).parents[1] / "examples" / "demo_model"
_UNCHECKED = (
    *("idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer"),
    *("uri-reference", "uri-template"),
)
"""Formats that jsonschema_rs checks and llguidance does not: annotations."""
_SECONDS = 10.0
_MAX_TOKENS = 1_000
_END_RATE = 0.35
"""Probability that a walk takes a token that ends something, if it may: strings would never end otherwise."""


@dataclass(slots=True, kw_only=True)
class Report:
    """The results for all schemas."""

    num_schemas: int = 0
    num_kept: int = 0
    num_unchecked: int = 0
    """Compiled, but rejected by the validator that was to check their texts."""
    milliseconds: list[float] = field(default_factory=list)
    """Processor time of compiling each schema that was kept."""
    num_texts: int = 0
    num_unfinished: int = 0
    invalid: list[str] = field(default_factory=list)
    refusals: collections.Counter[str] = field(default_factory=collections.Counter)

    def lines(self) -> Iterator[str]:
        yield f"{self.num_kept} of {self.num_schemas} schemas kept"
        if self.milliseconds:
            median, most = np.percentile(self.milliseconds, [50, 95])
            yield f"compiled in {median:.1f} ms of processor time, 95 % within {most:.1f} ms"
        yield from (f"  {count:4} refused: {reason}" for reason, count in self.refusals.most_common())
        yield f"{self.num_texts} texts written, {len(self.invalid)} invalid; {self.num_unfinished} more were cut off"
        yield from (f"  {text}" for text in self.invalid)
        if self.num_unchecked:
            yield f"{self.num_unchecked} kept schemas were not checked: the validator cannot read them"


class Measurement:
    """Compiles schemas for one tokenizer and walks through them."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        config = json.loads((model / "config.json").read_text())
        self._eos_token_id = int(config["eos_token_id"])
        self._compiler = GrammarCompiler(
            GrammarTokens(model, vocab_size=config["vocab_size"], eos_token_ids=(self._eos_token_id,)),
            timeout_seconds=_SECONDS,
        )
        self._compiler.compile(StructuredOutput(json_object=True))  # loads the tokenizer
        self._filler = MaskFiller()
        self._words = np.zeros((1, -(-config["vocab_size"] // 32)), dtype=np.int32)
        vocabulary = self._tokenizer.get_vocab()
        self._ends = {token_id for text, token_id in vocabulary.items() if set(text) & set('"}],')}
        self._ends.add(self._eos_token_id)
        self.report = Report()

    def add(self, path: Path, *, num_walks: int, choose: random.Random) -> None:
        """Compile one schema; write texts and check them."""
        self.report.num_schemas += 1
        schema = json.loads(path.read_text())
        started = time.process_time()
        try:
            compilation = self._compiler.compile(StructuredOutput(json=schema))
            reason = compilation.error
        except (InvalidParamsError, InvalidRequestError) as error:
            reason = str(error)
        if reason is not None:
            self.report.refusals[re.sub(r"/\S*/", "/…/", reason)[:120]] += 1
            return
        self.report.milliseconds.append(1000 * (time.process_time() - started))
        self.report.num_kept += 1
        is_valid = _validator(schema)
        if is_valid is None:
            self.report.num_unchecked += 1
            return
        assert compilation.compiled is not None, "no error, and no matcher"
        for _ in range(num_walks):
            text = self._walk(compilation.compiled.copy(), choose)
            if text is None:
                self.report.num_unfinished += 1
                continue
            self.report.num_texts += 1
            if not is_valid(json.loads(text, parse_float=_finite)):
                self.report.invalid.append(f"{path}: {text[:300]}")

    def _walk(self, matcher: GrammarMatcher, choose: random.Random) -> str | None:
        token_ids: list[int] = []
        for _ in range(_MAX_TOKENS):
            token_id = self._next(matcher, choose)
            if token_id == self._eos_token_id:
                return str(self._tokenizer.decode(token_ids))
            if not matcher.accept(token_id):
                return None
            token_ids.append(token_id)
        return None

    def _next(self, matcher: GrammarMatcher, choose: random.Random) -> int:
        if forced := matcher.forced_tokens():
            return forced[0]
        self._filler.fill([(matcher, 0, [])], self._words)
        allowed = np.flatnonzero(np.unpackbits(self._words.view(np.uint8)[0], bitorder="little")).tolist()
        ends = [token_id for token_id in allowed if token_id in self._ends]
        return int(choose.choice(ends if ends and choose.random() < _END_RATE else allowed))


def _finite(text: str) -> float:
    """Parse a number as JSON defines it; Python would turn 1e999 into infinity, which is not valid."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


def _validator(schema: Any) -> Callable[[Any], bool] | None:
    try:
        return jsonschema_rs.validator_for(
            schema, validate_formats=True, formats=dict.fromkeys(_UNCHECKED, lambda _: True)
        ).is_valid
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        return None


def main(arguments: list[str]) -> int:
    """Measure and print; return 1 if any text was invalid."""
    parser = argparse.ArgumentParser(prog="python -m lab.schemas", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="JSON schemas, one per file, searched recursively")
    parser.add_argument("--count", type=natural, help="number of schemas, drawn by --seed; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--walks", type=natural, default=8, help="texts to write per schema")
    parser.add_argument("--model", type=Path, default=_DEMO, help="a folder with tokenizer.json and config.json")
    options = parser.parse_args(arguments)
    paths = sorted(options.folder.rglob("*.json"))
    if not paths:
        parser.error(f"{options.folder} contains no .json file")
    choose = random.Random(options.seed)
    if options.count is not None:
        paths = choose.sample(paths, min(options.count, len(paths)))
    measurement = Measurement(options.model)
    for path in paths:
        measurement.add(path, num_walks=options.walks, choose=choose)
    print(*measurement.report.lines(), sep="\n")
    return 1 if measurement.report.invalid else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
