"""One test for each bug that other inference engines were known for, by its name: here each must not happen.

Each shows the heart of the matter in a few lines; other files of this folder go through the details.
"""

from __future__ import annotations

import gc
import random
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from engine import LLM
from engine.config import Admission, PolicyName
from engine.core import Engine
from engine.errors import InvalidRequestError
from engine.grammars.grammar import GrammarMatcher, GrammarTokens
from engine.outputs import FinishReason, TokenDelta
from engine.params import SamplingParams
from engine.scheduling.decisions import Reason
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import Sequence
from engine.speculation.speculator import Speculator
from engine.structured import StructuredOutput
from engine.text import StopMatcher, TextStream
from kernels.write_kv import write_kv
from tests.engine.builders import FreeRows, make_engine, run_all
from tests.engine.simulated_engine import SimulatedEngine
from tests.engine.texts import SAMPLES, TOKENIZERS, byte_level, stream_text
from tests.engine.tiny_models import TinyModel, TinyModels

Deltas = dict[tuple[int, int], list[TokenDelta]]


def greedy(max_tokens: int = 8, **extra: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **extra})


def seeded(seed: int = 5, **extra: Any) -> SamplingParams:
    return SamplingParams(**{"seed": seed, "max_tokens": 12, "ignore_eos": True, **extra})


def run(engine: Engine) -> Deltas:
    """Run to the end; everything must add up after each step, and nothing be held after the last."""
    deltas: Deltas = {}
    while engine.has_work:
        for delta in engine.step():
            deltas.setdefault((delta.request_id, delta.index), []).append(delta)
        engine.scheduler.check_integrity()
    assert engine.scheduler.pool.num_used == 0
    return deltas


def tokens(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def outputs(engine: Engine) -> dict[tuple[int, int], list[int]]:
    return {child: tokens(deltas) for child, deltas in run(engine).items()}


def few(model: TinyModel, count: int) -> TinyModel:
    return TinyModel(model.path, model.prompts[:count], model.max_tokens[:count], model.expected[:count])


def mixed_work(count: int) -> list[tuple[list[int], int]]:
    rng = random.Random(3)
    return [([rng.randrange(97) for _ in range(rng.randint(1, 40))], rng.randint(1, 30)) for _ in range(count)]


@pytest.fixture
def model(tiny_models: TinyModels) -> TinyModel:
    return tiny_models["llama-gqa"]


# --- scheduling and blocks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [6, 16, 512])
@pytest.mark.parametrize("policy", list(PolicyName))
def test_output_garbled_after_preemption(policy: PolicyName, budget: int, model: TinyModel, *, overlap: bool) -> None:
    settings = {"policy": policy, "max_num_batched_tokens": budget, "max_num_seqs": 6, "admission": "prompt"}
    engine = make_engine(model, num_kv_blocks=24, block_size=4, overlap=overlap, **settings)
    assert run_all(engine, few(model, 12)) == model.expected[:12]
    assert engine.stats().scheduler.num_preemptions > 0


@pytest.mark.parametrize("policy", list(PolicyName))
def test_preemption_thrash_livelock(policy: PolicyName) -> None:
    engine = SimulatedEngine(num_blocks=19, admission=Admission.PROMPT, policy=policy, enable_prefix_caching=False)
    work = mixed_work(40)
    for place, (prompt, max_tokens) in enumerate(work):
        engine.add(prompt, max_tokens, priority=place % 3, deadline=float(place % 50), salt=f"tenant {place % 4}")
    num_steps = 0
    while engine.scheduler.has_work:
        first = next(iter(engine.scheduler.running_sequences()), None)
        before = first.num_computed_tokens if first else 0
        engine.step()
        num_steps += 1
        # Fair shares move with every step; under the other policies the best one is never made to give way.
        assert first is None or first.num_computed_tokens > before or policy is PolicyName.FAIR
    assert engine.scheduler.counters.num_preemptions > 0
    # One sequence after the other, each prompt in one chunk more than it needs.
    assert num_steps <= sum(len(prompt) // 32 + 2 + max_tokens for prompt, max_tokens in work)


def test_request_larger_than_the_pool_hangs(model: TinyModel) -> None:
    engine = make_engine(model, num_kv_blocks=4)
    engine.add(0, [5] * 60, params=greedy(30))
    engine.add(1, [5] * 60, params=greedy(5))
    deltas = run(engine)
    assert [delta.finish_reason for delta in deltas[0, 0]] == [FinishReason.ERROR]
    assert "pool holds 64" in str(deltas[0, 0][0].error)
    assert len(tokens(deltas[1, 0])) == 5


@pytest.mark.parametrize("seed", range(6))
def test_block_leak_double_free(seed: int) -> None:
    rng = random.Random(seed)
    engine = SimulatedEngine(num_blocks=25, max_num_seqs=6, admission=Admission.PROMPT)
    scheduler = engine.scheduler
    for number in range(400):
        running = scheduler.running_sequences()
        action = rng.choice(["add", "step", "step", "step", "abort", "finish", "preempt"])
        if action == "add":
            engine.add([rng.randrange(3) for _ in range(rng.randint(1, 24))], rng.randint(1, 20), n=rng.randint(1, 3))
        elif action == "step" and scheduler.has_work:
            engine.step()
        elif action == "abort":
            scheduler.abort(rng.randrange(number + 1))
        elif action == "finish" and running:
            scheduler.finish(rng.choice(list(running)))
        elif action == "preempt" and running:
            scheduler._preempt(rng.choice(list(running)), Reason.PREEMPTED_FOR_BLOCKS, next(iter(running)))
        scheduler.check_integrity()
    assert scheduler.counters.num_preemptions > 0
    engine.run()
    assert scheduler.pool.num_used == 0
    assert scheduler.pool.num_available == scheduler.pool.capacity


def test_hash_collision_poisons_the_cache(model: TinyModel) -> None:
    engine = make_engine(model, block_size=4)
    engine.scheduler.pool._digest = lambda content: b"the same for every block"
    for _ in range(2):
        assert run_all(engine, few(model, 12)) == model.expected[:12]
    assert engine.scheduler.pool.num_cached == 1


def test_cross_tenant_cache_leak() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=64)
    prompt = list(range(20))
    ids = {salt: engine.add(prompt, 9, salt=salt) for salt in ("one", "other")}
    engine.step()
    again = engine.add(prompt, 9, salt="one")
    engine.step()
    blocks = {running.request.request_id: set(running.block_ids) for running in engine.scheduler.running_sequences()}
    assert not blocks[ids["one"]] & blocks[ids["other"]]
    assert blocks[ids["one"]] & blocks[again]
    engine.run()
    # Whether a prompt was seen before shows in the time to its first token: another tenant must compute all of it.
    stranger = engine.add(prompt, 1, salt="third")
    engine.run()
    assert engine.finished[stranger][0].num_cached_tokens == 0
    assert engine.finished[again][0].num_cached_tokens == 16


def test_block_cached_before_its_kv_was_written() -> None:
    engine = SimulatedEngine(max_num_batched_tokens=8)
    scheduler, pool, prompt = engine.scheduler, engine.scheduler.pool, list(range(30))
    engine.add(prompt, 1)
    for num_written in (0, 8, 16, 24):
        plan = scheduler.schedule()
        assert plan.starts == [num_written]
        # While the step runs, its blocks are taken and their tokens known, and nothing is in them yet.
        assert len(pool.match(pool.chain(""), prompt, 7)[0]) == num_written // 4
        scheduler.advance(plan)


def test_prompt_logprobs_with_a_prefix_hit(model: TinyModel) -> None:
    engine, prompt = make_engine(model, block_size=4), model.prompts[49]
    found = []
    for request_id, count in enumerate((2, None, 2)):
        engine.add(request_id, prompt, params=greedy(prompt_logprobs=count))
        found.append(run(engine)[request_id, 0][0])
    assert found[1].num_cached_tokens > 0
    first, _, second = (delta.prompt_logprobs for delta in found)
    assert first is not None
    assert len(first) == len(prompt) - 1
    assert second == first


# --- the model's memory ----------------------------------------------------------------------------------------------


def test_padded_row_writes_the_last_slot(model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(model, max_num_seqs=4, num_kv_blocks=60)
    engine._runner.fill_cache(7.0)
    live: set[int] = set()
    compute = engine._runner.forward

    def watched(plan: StepPlan, tables: npt.NDArray[np.int32], **fields: Any) -> Any:
        for sequence, start, count in zip(plan.sequences, plan.starts, plan.counts, strict=True):
            live.update(
                int(tables[sequence.row, place // 16]) * 16 + place % 16 for place in range(start, start + count)
            )
        return compute(plan, tables, **fields)

    monkeypatch.setattr(engine._runner, "forward", watched)
    run_all(engine, few(model, 10))
    for layer in engine._runner._cache:
        for part, slots in zip(layer, slot_of_each_element(*layer), strict=True):
            assert set(slots[part != 7.0].long().tolist()) == live


def slot_of_each_element(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return caches of the same shapes that hold, wherever a token's key and value lie, the number of its slot."""
    blocks, heads, block_size, dim = keys.shape
    slots = torch.arange(blocks * block_size)
    numbers = slots.to(keys.dtype)[:, None, None].expand(-1, heads, dim).contiguous()
    own = torch.empty_like(keys), torch.empty_like(values)
    write_kv(numbers, numbers, *own, slots)
    return own


@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window"])
def test_nan_in_stale_blocks(name: str, tiny_models: TinyModels) -> None:
    model = few(tiny_models[name], 12)
    engine = make_engine(model, num_kv_blocks=100, enable_prefix_caching=False)
    for _ in range(2):  # the second time over blocks that were used
        engine._runner.fill_cache(float("nan"))
        assert run_all(engine, model) == model.expected
    engine.add(0, model.prompts[0], params=greedy(logprobs=3))
    entries = [entry for delta in run(engine)[0, 0] for entry in delta.logprobs or []]
    assert np.isfinite([value for entry in entries for value in (entry.logprob, *entry.top_logprobs)]).all()


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", SAMPLES)
def test_utf8_split_byte_fallback(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text).ids
    assert stream_text(tokenizer, tokenizer.encode("prompt. ").ids, ids) == text
    for cut in range(1, len(ids)):
        # What is whole before the cut is the prompt's; a character that the cut splits is the output's.
        whole = next(size for size in range(len(text), -1, -1) if len(tokenizer.encode(text[:size]).ids) <= cut)
        assert stream_text(tokenizer, ids[:cut], ids[cut:]) == text[whole:]


def test_stop_strings() -> None:
    def shown(stops: list[str], pieces: list[str], *, include_stop: bool = False) -> tuple[list[str], str | None]:
        matcher = StopMatcher(stops, include_stop=include_stop)
        return [*(matcher.push(piece) for piece in pieces), matcher.finish()], matcher.matched

    assert shown(["END"], ["one E", "N", "D two"]) == (["one ", "", "", ""], "END")  # across tokens, nothing leaks
    assert shown(["END"], ["one E", "N", "D two"], include_stop=True) == (["one ", "", "END", ""], "END")
    assert shown(["d", "bc"], ["abcd"]) == (["a", ""], "bc")  # of two in one token the one that completes first
    assert shown(["END"], ["one E", "N"]) == (["one ", "", "EN"], None)  # what was none comes out at the end


def test_min_tokens_against_stop_and_eos(model: TinyModel) -> None:
    engine, prompt = make_engine(model), model.prompts[0]
    eos, stop = 2, 9
    ends: list[dict[str, Any]] = [
        {"logit_bias": {eos: 100.0}, "ignore_eos": False},
        {"logit_bias": {stop: 100.0}, "stop_token_ids": [stop]},
    ]
    for request_id, end in enumerate(ends):
        engine.add(request_id, prompt, params=greedy(20, min_tokens=5, **end))
    found = run(engine)
    for request_id, end_token in enumerate((eos, stop)):
        own = tokens(found[request_id, 0])
        assert (own.index(end_token), len(own)) == (5, 6)
        assert found[request_id, 0][-1].finish_reason is FinishReason.STOP
    tokenizer = TOKENIZERS["byte-level"]
    stream = TextStream(tokenizer, [0], SamplingParams(stop="ab", min_tokens=3))
    for token in tokenizer.encode("ab ab c").ids:
        stream.push([token])
    assert stream.text == "ab "


def test_double_bos_with_a_chat_template(model: TinyModel, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    shutil.copytree(model.path, tmp_path, dirs_exist_ok=True)
    backend = byte_level()
    backend.post_processor = TemplateProcessing(single="! $A", special_tokens=[("!", backend.token_to_id("!"))])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="!", eos_token='"')
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    llm = LLM(tmp_path, device="cpu", dtype="float32", num_kv_blocks=20, warm_up=False)
    (chat,) = llm.chat([{"role": "user", "content": "Hi"}], greedy(1))
    (plain,) = llm.generate(["Hi"], greedy(1))
    assert chat.prompt_token_ids == plain.prompt_token_ids
    assert chat.prompt_token_ids.count(tokenizer.bos_token_id) == 1


# --- sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
def test_seed_depends_on_the_batch(model: TinyModel, *, overlap: bool) -> None:
    alone, crowded, scarce = (
        make_engine(model),
        make_engine(model, max_num_batched_tokens=16, overlap=overlap),
        make_engine(model, num_kv_blocks=24, block_size=4, admission="prompt", overlap=overlap),
    )
    for engine, others in ((alone, 0), (crowded, 12), (scarce, 12)):
        for place in range(others):
            engine.add(100 + place, model.prompts[place], params=seeded(place))
        engine.add(0, model.prompts[49], params=seeded())
        for place in range(others):
            engine.add(200 + place, model.prompts[place], params=seeded(place, top_p=0.9))
    expected = outputs(alone)[0, 0]
    assert outputs(crowded)[0, 0] == expected
    assert outputs(scarce)[0, 0] == expected
    assert scarce.stats().scheduler.num_preemptions > 0


def test_n_above_1_with_a_seed_repeats_itself(model: TinyModel) -> None:
    engine = make_engine(model)
    engine.add(0, model.prompts[0], params=seeded(n=4))
    for place in range(4):
        engine.add(1 + place, model.prompts[0], params=seeded(5 + place))
    found = outputs(engine)
    assert [found[0, place] for place in range(4)] == [found[1 + place, 0] for place in range(4)]
    assert len({tuple(found[0, place]) for place in range(4)}) == 4


@pytest.mark.parametrize(("speculation", "overlap"), [("off", False), ("off", True), ("ngram", False)])
def test_penalties_stale(speculation: str, model: TinyModel, *, overlap: bool) -> None:
    from transformers import AutoModelForCausalLM

    allowed, prompt = [7, 8, 9, 10], [7, 8, 9, 8, 7, 9, 9, 8, 7, 8] * 3
    params = greedy(24, allowed_token_ids=allowed, frequency_penalty=1.5, presence_penalty=2.0)
    engine = make_engine(model, speculation=speculation, overlap=overlap)
    if engine.speculator is not None:
        engine.speculator = Speculator(max_drafts=8, min_match=1, max_match=8, clock=FreeRows())
    engine.add(0, prompt, params=params)
    found = outputs(engine)[0, 0]
    assert (engine.stats().speculation.num_drafted > 0) == (speculation == "ngram")
    oracle = AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32).eval()
    for place in range(24):  # every token counts those up to the one just before it
        counts = Counter(found[:place])
        with torch.inference_mode():
            logits = oracle(torch.tensor([prompt + found[:place]])).logits[0, -1].tolist()
        edited = {token: logits[token] - 1.5 * counts[token] - 2.0 * (counts[token] > 0) for token in allowed}
        assert found[place] == max(edited, key=lambda token: edited[token])


def test_logprobs_of_a_decode_against_a_prefill(model: TinyModel) -> None:
    engine, prompt = make_engine(model), model.prompts[49]
    edits: dict[str, Any] = {"temperature": 3.0, "logit_bias": {9: 50.0}, "top_k": 5, "repetition_penalty": 1.5}
    engine.add(0, prompt, params=seeded(logprobs=4, **edits))
    deltas = run(engine)[0, 0]
    decoded = [entry for delta in deltas for entry in delta.logprobs or []]
    engine.add(1, [*prompt, *tokens(deltas)], params=greedy(1, prompt_logprobs=4))
    prefilled = (run(engine)[1, 0][0].prompt_logprobs or [])[-len(decoded) :]
    # A prompt is not sampled, so what equals its values is raw: before temperature, filters, bias and penalties.
    assert [entry.logprob for entry in decoded] == pytest.approx([entry.logprob for entry in prefilled], abs=1e-3)
    assert [entry.top_token_ids for entry in decoded] == [entry.top_token_ids for entry in prefilled]


# --- the ends of requests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "max_tokens", "reason", "count"),
    [
        (10, 0, FinishReason.LENGTH, 0),
        (10, 1, FinishReason.LENGTH, 1),
        (63, 9, FinishReason.LENGTH, 1),
        (64, 9, FinishReason.ERROR, 0),
        (65, 9, FinishReason.ERROR, 0),
    ],
)
def test_max_tokens_and_prompts_at_the_limit(
    *, length: int, max_tokens: int, reason: FinishReason, count: int, model: TinyModel
) -> None:
    engine = make_engine(model, max_model_len=64)
    engine.add(0, [7] * length, params=greedy(max_tokens))
    deltas = run(engine)[0, 0]
    assert (deltas[-1].finish_reason, len(tokens(deltas))) == (reason, count)


@pytest.mark.parametrize(("max_tokens", "reason"), [(4, FinishReason.LENGTH), (5, FinishReason.STOP)])
def test_eos_as_the_last_allowed_token(max_tokens: int, reason: FinishReason, model: TinyModel) -> None:
    engine = make_engine(model)
    params = greedy(max_tokens, min_tokens=4, logit_bias={2: 100.0}, ignore_eos=False)
    engine.add(0, model.prompts[0], params=params)
    deltas = run(engine)[0, 0]
    assert (deltas[-1].finish_reason, len(tokens(deltas))) == (reason, max_tokens)
    assert (tokens(deltas)[-1] == 2) == (reason is FinishReason.STOP)


@pytest.mark.parametrize(("kind", "error"), [("bad", "cannot be used"), ("slow", "not compiled within")])
def test_bad_grammar_slow_grammar(kind: str, error: str, model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def compile_grammar(tokens: GrammarTokens, structured: StructuredOutput) -> GrammarMatcher:
        release.wait(60 if structured.regex == "slow" else 0)
        raise InvalidRequestError("The regex cannot be used.")

    monkeypatch.setattr(GrammarTokens, "load", lambda tokens: None)
    monkeypatch.setattr(GrammarTokens, "compile", compile_grammar)
    engine = make_engine(model, grammar_timeout_seconds=1e-9 if kind == "slow" else 60.0)
    engine.add(0, model.prompts[0], params=SamplingParams(structured=StructuredOutput(regex=kind)))
    engine.add(1, model.prompts[0], params=greedy(4))
    deltas = run(engine)  # ends while the slow one is still being compiled
    release.set()
    assert [delta.finish_reason for delta in deltas[0, 0]] == [FinishReason.ERROR]
    assert error in str(deltas[0, 0][0].error)
    assert len(tokens(deltas[1, 0])) == 4


def test_ram_growth(model: TinyModel) -> None:
    def num_alive() -> int:
        gc.collect()
        return sum(type(found) is Sequence for found in gc.get_objects())

    engine, before = make_engine(model), num_alive()
    for request_id in range(400):
        engine.add(request_id, [5, 6, request_id % 250], params=greedy(2))
        if request_id % 3 == 0:
            engine.abort([request_id])
    run(engine)
    # The newest plan and each seat's last owner; test_soak.py looks at the memory of a long run.
    assert num_alive() - before <= 2 * engine.config.max_num_seqs


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("num_steps", [0, 1, 3, 12])
def test_abort_during_a_step(num_steps: int, model: TinyModel, *, overlap: bool) -> None:
    engine = make_engine(model, max_num_batched_tokens=16, num_kv_blocks=12, admission="prompt", overlap=overlap)
    for request_id in range(8):
        engine.add(request_id, model.prompts[request_id], params=seeded(request_id, n=2, max_tokens=20))
    early = [delta for _ in range(num_steps) for delta in engine.step()]
    unfinished = {(0, index) for index in (0, 1)} - {
        (delta.request_id, delta.index) for delta in early if delta.finish_reason
    }
    engine.abort([0, 99])
    deltas = run(engine)
    assert {child for child in deltas if child[0] == 0} == unfinished
    for child in unfinished:
        assert [(delta.token_ids, delta.finish_reason) for delta in deltas[child]] == [([], FinishReason.ABORT)]
    before = {child: [delta for delta in early if (delta.request_id, delta.index) == child] for child in deltas}
    others = make_engine(model)
    for request_id in range(1, 8):
        others.add(request_id, model.prompts[request_id], params=seeded(request_id, n=2, max_tokens=20))
    expected = outputs(others)
    assert {child: tokens(before[child] + deltas[child]) for child in expected} == expected
