"""Lines that a server outside the house answers: what one costs, and what was paid and reserved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs.accounts.prices import Prices
from jobs.engines.engine import Spill
from tests.workers.remote.builders import Post
from workers.chunks.run import ChunkRun
from workers.remote.exchange import Patience

MakeLine = Callable[..., dict[str, Any]]
SubmitLines = Callable[..., str]

PAID = 7 * 3 + 2 * 5
"""For an answer of the server: seven tokens of a prompt, two of an answer."""
MOST = (7 + 512 + 100) * 3 + 4 * 5
"""More than one line may cost: its bytes, the template, four tokens of an answer."""
HUGE = 7 * 3 + 10**9 * 5
"""What the server counts, though it was asked for four tokens: its vendor may want to be paid for them."""


PATIENT = Patience()
"""For exact costs: an answer that comes too late on a busy machine would cost as if it had not been counted."""


def spill(budget_picos: int) -> Spill:
    return Spill(budget_picos=budget_picos, prices=Prices(input_picos=3, output_picos=5))


def used(post: Post) -> int:
    return int(post.rows("SELECT coalesce(sum(used_picos), 0)::bigint FROM spill_day")[0][0])


def used_by_day(post: Post) -> list[int]:
    """Return what is paid and reserved, earlier days first."""
    return [used for (used,) in post.rows("SELECT used_picos::int FROM spill_day ORDER BY day")]


def paid(post: Post) -> int:
    return int(post.rows("SELECT coalesce(sum(spill_picos), 0)::bigint FROM ledger")[0][0])


def run_while_any(post: Post) -> None:
    """Claim and run chunks until none is claimed."""
    assert post.answerer is not None
    while (claim := post.claim_if_any()) is not None:
        ChunkRun(post.answerer.open(claim), post.services).run()


class TenTokens:
    """A line of ten tokens in and ten out."""

    most_read_tokens, most_output_tokens = 10, 10

    def __init__(self, line_no: int) -> None:
        self.line_no = line_no
