"""Tests of sharing prefixes: nothing is computed twice at once, and the cache keeps what an ideal LRU would keep."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict
from collections.abc import Callable

import pytest

from engine.config import Admission
from engine.scheduling.blocks import sha256_digest
from engine.scheduling.plan import StepPlan
from tests.engine.simulated_engine import SimulatedEngine, expected_output

PREFIX = list(range(100, 140))


def tokens_computed(engine: SimulatedEngine) -> int:
    return engine.scheduler.counters.num_computed_tokens


@pytest.mark.parametrize("budget", [8, 32, 512])
def test_a_prefix_that_is_being_computed_is_waited_for(budget: int) -> None:
    engine = SimulatedEngine(max_num_batched_tokens=budget)
    ids = [engine.add([*PREFIX, tail], 4) for tail in range(6)]
    engine.run()
    # The prefix once, each own last token, and three of the four output tokens of each.
    assert tokens_computed(engine) == len(PREFIX) + 6 * (1 + 3)
    for tail, request_id in enumerate(ids):
        prompt = [*PREFIX, tail]
        assert engine.finished[request_id][0].token_ids == [*prompt, *expected_output(prompt, 4)]


def test_requests_behind_one_that_waits_for_a_prefix_go_ahead() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=64)
    leader, sharer, other = engine.add(PREFIX, 2), engine.add([*PREFIX, 1], 2), engine.add([7, 8, 9], 2)
    engine.step()
    assert {sequence.request.request_id for sequence in engine.scheduler.running_sequences()} == {leader, other}
    engine.step()
    assert sharer in {sequence.request.request_id for sequence in engine.scheduler.running_sequences()}
    engine.run()
    assert set(engine.finished) == {leader, sharer, other}


@pytest.mark.parametrize("end", ["abort", "finish"])
def test_a_leader_that_goes_away_holds_nobody_up(end: str) -> None:
    engine = SimulatedEngine(max_num_batched_tokens=30)
    leader = engine.add(PREFIX, 1)
    engine.step()
    sharers = [engine.add([*PREFIX, tail], 2) for tail in (1, 2)]
    if end == "abort":
        engine.scheduler.abort(leader)
    engine.run()
    assert set(engine.finished) >= set(sharers)
    # Each computes its own last token and one of its two outputs; an abort after 30 tokens loses half a block of 4.
    assert tokens_computed(engine) == len(PREFIX) + 2 * 2 + (2 if end == "abort" else 0)


@pytest.mark.parametrize("num_prompt_tokens", [7, 8, 9, 12])
def test_a_conversation_is_found_again_though_its_beginning_was_evicted_once(num_prompt_tokens: int) -> None:
    engine = SimulatedEngine(num_blocks=41, max_num_batched_tokens=256, max_model_len=160, admission=Admission.PROMPT)
    prompt = list(range(10, 10 + num_prompt_tokens))
    engine.add(prompt, 2)
    engine.run()
    first_turn = engine.add(prompt, 40)
    for _ in range(30):
        engine.step()
    engine.add([90 + index % 7 for index in range(engine.scheduler.pool.num_available * 4 - 1)], 1)  # evicts
    engine.run()
    second_turn = [*engine.finished[first_turn][0].token_ids[:-1], 5, 6, 7]
    ids = []
    for _ in range(2):
        ids.append(engine.add(second_turn, 1))
        engine.run()
    assert engine.finished[ids[1]][0].num_cached_tokens == (len(second_turn) - 1) // 4 * 4


def test_two_tenants_never_wait_for_each_other() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=128)
    engine.add(PREFIX, 2, tenant="a")
    engine.add(PREFIX, 2, tenant="b")
    engine.step()
    assert engine.scheduler.num_running == 2


def test_tenants_share_no_blocks_and_do_not_see_what_others_have_asked() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=64)
    prompt = list(range(20))
    ids = {tenant: engine.add(prompt, 9, tenant=tenant) for tenant in ("one", "other")}
    engine.step()
    again = engine.add(prompt, 9, tenant="one")
    engine.step()
    blocks = {running.request.request_id: set(running.block_ids) for running in engine.scheduler.running_sequences()}
    assert not blocks[ids["one"]] & blocks[ids["other"]]
    assert blocks[ids["one"]] & blocks[again]
    engine.run()
    # Whether a prompt was seen before shows in the time to its first token: another tenant must compute all of it.
    stranger = engine.add(prompt, 1, tenant="third")
    engine.run()
    assert engine.finished[stranger][0].num_cached_tokens == 0
    assert engine.finished[again][0].num_cached_tokens == 16


@pytest.mark.parametrize("digest", [b"\0" * 32, b"\1" * 32])
def test_colliding_digests_neither_hang_nor_share(digest: bytes) -> None:
    engine = SimulatedEngine(max_num_batched_tokens=16, digest=lambda content: digest)
    prompts = [[first, *PREFIX] for first in (1, 1, 2, 3)]
    ids = [engine.add(prompt, 5) for prompt in prompts]
    engine.run(max_steps=500)
    for prompt, request_id in zip(prompts, ids, strict=True):
        assert engine.finished[request_id][0].token_ids == [*prompt, *expected_output(prompt, 5)]
    # The second finds the first block of the first, which is its own. What follows that block has its digest, too, and
    # is not it; and the beginnings of the others, of the same digest again, are not theirs.
    assert [engine.finished[request_id][0].num_cached_tokens for request_id in ids] == [0, 4, 0, 0]


@pytest.mark.parametrize(
    "digest",
    [
        sha256_digest,
        lambda content: b"same",
        lambda content: content[-16:],  # of a block's own tokens: the same behind every beginning
        lambda content: bytes([*content[:-4], content[-4] // 2]),  # the same for pairs behind one beginning
    ],
    ids=["sha256", "constant", "own tokens", "pairs"],
)
def test_a_shared_block_holds_what_it_is_shared_for(digest: Callable[[bytes], bytes]) -> None:
    rng = random.Random(4)
    engine = SimulatedEngine(num_blocks=40, max_num_batched_tokens=24, digest=digest)
    for _ in range(300):
        blocks = [[9, 9, 9, 4 * depth + rng.randrange(4)] for depth in range(rng.randint(1, 4))]
        engine.add([*itertools.chain(*blocks), 7], rng.randint(1, 6), tenant=rng.choice("ab"))
    held: dict[int, tuple[str, list[int]]] = {}

    def compare(plan: StepPlan) -> None:
        for sequence, count in zip(plan.sequences, plan.counts, strict=True):
            num_computed = sequence.num_computed_tokens
            for index in range((num_computed + count) // engine.block_size):
                end = (index + 1) * engine.block_size
                needed = (sequence.request.tenant, sequence.token_ids[:end])
                assert held.get(sequence.block_ids[index]) == needed or end > num_computed
                held[sequence.block_ids[index]] = needed

    engine.watch = compare
    engine.run()
    assert engine.scheduler.cache_counters.num_cached_tokens > 100


def ideal_hits(prompts: list[list[int]], *, num_blocks: int, block_size: int) -> int:
    """Return the prompt tokens that an LRU of whole blocks finds when the requests come one after the other."""
    cache: OrderedDict[tuple[int, ...], None] = OrderedDict()
    hits = 0
    for prompt in prompts:
        keys = [tuple(prompt[:end]) for end in range(block_size, len(prompt) + 1, block_size)]
        for key in keys[: (len(prompt) - 1) // block_size]:
            if key not in cache:
                break
            hits += block_size
        for key in reversed(keys):  # the beginning of a prefix is used last, as its end is worthless without it
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > num_blocks:
            cache.popitem(last=False)
    return hits


def sharing_trace(count: int, *, block_size: int, seed: int) -> list[list[int]]:
    """Return prompts of which most begin with one of 40 prefixes, some prefixes far more often than others."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(1000) for _ in range(block_size * rng.randint(2, 12))] for _ in range(40)]
    weights = [1.0 / rank for rank in range(1, 41)]
    return [
        rng.choices(prefixes, weights)[0] + [rng.randrange(1000) for _ in range(rng.randint(1, 3 * block_size))]
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("num_blocks", [200, 400, 800])
def test_the_hit_rate_is_within_one_percent_of_an_ideal_lru(num_blocks: int, seed: int) -> None:
    prompts = sharing_trace(1_500, block_size=4, seed=seed)
    engine = SimulatedEngine(num_blocks=num_blocks + 1, max_num_seqs=4, max_num_batched_tokens=64)
    waiting = iter(prompts)
    for _ in range(len(prompts)):
        engine.add(next(waiting), 1)
        while engine.scheduler.num_running + engine.scheduler.num_waiting >= 4:
            engine.step()
    engine.run()
    hits = sum(sequence.num_cached_tokens for group in engine.finished.values() for sequence in group)
    ideal = ideal_hits(prompts, num_blocks=num_blocks, block_size=4)
    assert hits >= 0.99 * ideal
