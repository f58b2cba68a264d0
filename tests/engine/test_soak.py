"""Tests of ten thousand requests of every kind through one engine: no block is lost and memory does not grow."""

from __future__ import annotations

import gc
import os
import random
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from engine import LLM, SamplingParams
from engine.outputs import FinishReason
from engine.scheduling.request import Sequence
from tests.engine.builders import new_request
from tests.engine.texts import byte_level
from tests.engine.tiny_models import save_tiny

pytestmark = pytest.mark.long

NUM_ROUNDS = 60
NUM_GENERATED, NUM_ABORTED = 150, 17
"""Requests of a round: those that `LLM.generate` answers, and those that are aborted on their way."""

MAX_ROWS = 32
"""Tokens of a step, and sequences that sample in it."""

ROUNDS_PER_SAMPLE = 5

MAX_GROWTH_BYTES = 256 * 2**10
"""Between two samples of the memory, 835 requests, in the median: 314 bytes each, less than a request's own lists take.

A leak grows in every interval. A heap that is extended once, or a library that compiles one more product, does not.
"""

MAX_GROWTH_IN_ALL_BYTES = 32 * 2**20

SMALL = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}

PLAIN = SamplingParams(max_tokens=2, ignore_eos=True)
KINDS = [
    PLAIN,
    SamplingParams(max_tokens=8, stop_token_ids=list(range(0, 256, 2))),
    SamplingParams(max_tokens=8, stop=["a", "b", "e", "\ufffd"], ignore_eos=True),
    SamplingParams(max_tokens=3, n=2, seed=1, frequency_penalty=0.5),
    SamplingParams(max_tokens=2, logprobs=2, prompt_logprobs=1),
    SamplingParams(max_tokens=0),
]


@pytest.fixture
def llm(tmp_path: Path) -> LLM:
    from transformers import PreTrainedTokenizerFast

    save_tiny(tmp_path, SMALL)
    PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="!", eos_token='"').save_pretrained(tmp_path)
    # The sequences of one step may need more than this pool: some are preempted too.
    return LLM(
        tmp_path,
        device="cpu",
        dtype="float32",
        block_size=4,
        num_kv_blocks=48,
        max_num_seqs=MAX_ROWS,
        max_num_batched_tokens=MAX_ROWS,
        admission="prompt",
        warm_up=False,
    )


def meet_every_number_of_rows(llm: LLM) -> None:
    """Run steps of 1 to MAX_ROWS tokens, then of as many samples: oneDNN keeps compiled products for each that it met.

    That is half a megabyte each for every shape of a weight, and has nothing to do with the number of requests.
    """
    for count in range(1, MAX_ROWS + 1):
        llm.generate([[count, *range(100, 99 + count)]], PLAIN)
        llm.generate([[3 + index] for index in range(count)], PLAIN)


def run_round(llm: LLM, rng: random.Random, stems: list[list[int]], first_id: int) -> None:
    """Answer some requests while others, already on their way, are aborted; every one gets its end."""
    aborted = range(-first_id, -first_id - NUM_ABORTED, -1)
    for request_id in aborted:
        llm.engine.add(
            new_request(request_id, prompt(rng, stems), params=SamplingParams(max_tokens=60, ignore_eos=True, n=2))
        )
    for _ in range(rng.randint(1, 5)):
        llm.engine.step()
    llm.engine.abort(aborted)
    params = [KINDS[rng.randrange(len(KINDS))] for _ in range(NUM_GENERATED)]
    for output, own in zip(llm.generate([prompt(rng, stems) for _ in params], params), params, strict=True):
        reasons = {child.finish_reason for child in output.outputs}
        assert len(output.outputs) == own.n
        assert reasons <= {FinishReason.STOP, FinishReason.LENGTH}, output.outputs[0].error


def prompt(rng: random.Random, stems: list[list[int]]) -> list[int]:
    return [*stems[rng.randrange(len(stems))], *(rng.randrange(3, 256) for _ in range(rng.randint(1, 6)))]


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def num_sequences() -> int:
    """Return how many sequences of any engine are alive; the scheduler's newest plan and the seats keep some."""
    return sum(type(found) is Sequence for found in gc.get_objects())


def test_ten_thousand_requests_leave_no_block_and_no_memory_behind(llm: LLM) -> None:
    meet_every_number_of_rows(llm)
    rng = random.Random(9)
    stems = [[rng.randrange(3, 256) for _ in range(length)] for length in (0, 4, 9, 16, 30)]
    sizes, alive = [], []
    for index in range(NUM_ROUNDS):
        run_round(llm, rng, stems, 1 + index * NUM_ABORTED)
        assert not llm.engine.has_work
        if index % ROUNDS_PER_SAMPLE == ROUNDS_PER_SAMPLE - 1:
            sizes.append(resident_bytes())
            alive.append(num_sequences())
    stats, pool = llm.stats(), llm.engine.scheduler.pool
    assert NUM_ROUNDS * (NUM_GENERATED + NUM_ABORTED) >= 10_000
    assert stats.scheduler.num_preemptions > 0
    assert stats.cache.num_cached_tokens > 10_000
    llm.engine.scheduler.check_integrity()
    assert (pool.num_used, pool.num_available) == (0, pool.capacity)
    assert median(after - before for before, after in pairwise(sizes)) < MAX_GROWTH_BYTES, sizes
    assert max(sizes) - sizes[0] < MAX_GROWTH_IN_ALL_BYTES, sizes
    assert max(alive) - alive[0] <= 2 * llm.engine.config.scheduler.max_num_seqs, alive
