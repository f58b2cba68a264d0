"""Measure scores on answers of which a quarter is wrong, as models err; runs no model.

python -m lab.extraction simulated_answers [--layouts 40] [--papers 10] [--seed 0]

Of the wrong answers a quarter each is a value of another document; a value with another word or digit beside its true
quote; another value of the same document with that value's true quote; null though the paper states a value. A second
reading repeats an answer with the given probability and is drawn anew otherwise. Log-probabilities of right and wrong
values overlap as SmolLM2's do. Scores are calibrated on papers of some layouts, and measured on papers of others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks.arguments import natural
from features.documents.extraction.evaluation.metrics import auroc, risk_coverage, share_automated
from features.documents.extraction.scoring.calibration import TARGET, fit
from features.documents.extraction.scoring.score import prior_score
from lab.extraction.simulated_answers.answers import Error, Outcome, outcomes
from lab.extraction.simulated_answers.papers import ALL_LABELS, KNOWN_LABELS, papers

REPEATS = (0.3, 0.5, 0.8)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each probability that a second reading repeats the first."""
    parser = argparse.ArgumentParser(
        prog="tokenmill bench extraction simulated_answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--layouts", type=natural, default=40)
    parser.add_argument("--papers", type=natural, default=10, help="of each layout")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    print("".join(f"{name:>{len(name) + 2}}" for name in _HEAD))
    for repeat in REPEATS:
        known, measured = (
            outcomes(papers(arguments.layouts, of_each=arguments.papers, seed=seed, num_labels=labels), repeat=repeat)
            for seed, labels in ((2 * arguments.seed, KNOWN_LABELS), (2 * arguments.seed + 1, ALL_LABELS))
        )
        learned = fit([each.judged for each in known])
        scores = [learned.score(each.judged.features) for each in measured]
        pairs = zip(scores, measured, strict=True)
        accepted = [score >= learned.threshold(each.judged.features) for score, each in pairs]
        cells = [str(repeat), *_row(measured, scores, accepted)]
        print("".join(f"{cell:>{len(name) + 2}}" for cell, name in zip(cells, _HEAD, strict=True)))
        for error in Error:
            print(f"{auroc_of(measured, scores, error):>32.3f}   right values before: {error}")
    return 0


_SHARES = ("could be accepted", "of right ones", "accepted", "right of it")
_HEAD = ("repeated", "answers", "wrong", "AUROC", "before gold", *_SHARES)


def _row(measured: Sequence[Outcome], scores: Sequence[float], accepted: Sequence[bool]) -> list[str]:
    is_right = [each.judged.is_right for each in measured]
    before = auroc([prior_score(each.judged.features) for each in measured], is_right)
    automated, share_right = share_automated(risk_coverage(scores, is_right)), sum(is_right) / len(is_right)
    own = auroc(scores, is_right)
    assert own is not None and before is not None, "some are right, and some are wrong"  # noqa: PT018
    shares = (f"{automated:.1%}", f"{automated * TARGET / share_right:.1%}")
    unseen = [right for right, is_accepted in zip(is_right, accepted, strict=True) if is_accepted]
    learned = (f"{len(unseen) / len(is_right):.1%}", f"{sum(unseen) / max(1, len(unseen)):.1%}")
    return [str(len(measured)), f"{1 - share_right:.1%}", f"{own:.3f}", f"{before:.3f}", *shares, *learned]


def auroc_of(measured: Sequence[Outcome], scores: Sequence[float], error: Error) -> float:
    """Return how well scores tell answers with one kind of error from right ones."""
    own = [
        (score, each.error is None) for score, each in zip(scores, measured, strict=True) if each.error in (None, error)
    ]
    area = auroc([score for score, _ in own], [is_right for _, is_right in own])
    assert area is not None, "some are right, and some are wrong"
    return area


if __name__ == "__main__":
    raise SystemExit(main())
