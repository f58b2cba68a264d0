"""A device for the engine's real loop whose cache holds, in each slot, a hash of the whole prefix up to its token.

Tokens are a function of that hash, the seed and the position, so a wrong slot, block, copy or order shows: at once as a
slot that holds something else, or at the end as another output. Grammars are a function of the output so far.
"""

from __future__ import annotations

import random
from collections.abc import Sequence as AnySequence
from types import SimpleNamespace

import torch

from engine.config import EngineConfig
from engine.errors import InvalidRequestError
from engine.grammars.waiting import Compiled
from engine.loop.batch import StepArrays, build_arrays
from engine.loop.pending import PendingTokens
from engine.outputs import TokenLogprobs
from engine.params import SamplingParams
from engine.sampling.scoring import prompt_parts
from engine.scheduling.plan import StepPlan
from engine.scheduling.request import LoadedAdapter, Sequence
from engine.scheduling.seat_numbers import Int64
from engine.scheduling.seat_table import SeatTable
from engine.scheduling.swap import SwapRule, SwapSpace

VOCAB_SIZE = 7
Slot = tuple[int, int]
"""The hash of a prefix and the position of its last token."""
Row = tuple[int, int]
"""The hash of a prefix and its last token: what logits are elsewhere."""

_NOTHING: Slot = (-1, -1)


def mixed(state: int, value: int) -> int:
    """Return the hash of a prefix with one more token."""
    return (state * 1_000_003 + value * 7_919 + 12_345) % (2**61 - 1)


def forced_tokens(output: AnySequence[int]) -> list[int]:
    """Stand in for a grammar: return the token that must follow an output, if one must."""
    return [(output[-1] + 1) % VOCAB_SIZE] if output and output[-1] % 5 <= 1 else []


def next_token(row: Row, output: AnySequence[int], *, seed: int, params: SamplingParams) -> int:
    """Stand in for sampling: in two of three cases the token after the last one, so that drafts are often right."""
    if params.structured is not None and forced_tokens(output):
        return forced_tokens(output)[0]
    state, last = row
    number = mixed(mixed(17, seed), len(output)) % 1_009
    token = (last + 1) % VOCAB_SIZE if (state + number) % 3 else (state + number) % VOCAB_SIZE
    is_early = params.structured is None and len(output) < params.min_tokens
    while is_early and token in params.stop_token_ids:
        token = (token + 1) % VOCAB_SIZE
    return token


def expected_end(
    prompt: AnySequence[int], output: AnySequence[int], *, seed: int, params: SamplingParams, max_tokens: int
) -> tuple[list[int], str]:
    """Return what a child generates after `output` when nothing disturbs it, and why it ends."""
    tokens, whole, state = [], list(output), 0
    for token in (*prompt, *output):
        state = mixed(state, token)
    while True:
        token = next_token((state, [*prompt, *whole][-1]), whole, seed=seed, params=params)
        tokens.append(token)
        whole.append(token)
        state = mixed(state, token)
        if token in params.stop_token_ids and (params.structured is not None or len(whole) > params.min_tokens):
            return tokens, "stop"
        if len(whole) >= max_tokens:
            return tokens, "length"


class OutputMatcher:
    """Follow one output by `forced_tokens`; in place of engine.grammar.Matcher."""

    error: str | None = None

    def __init__(self, output: AnySequence[int] = ()) -> None:
        self._output = list(output)

    def copy(self) -> OutputMatcher:
        return OutputMatcher(self._output)

    def accept(self, token_id: int) -> bool:
        is_allowed = forced_tokens(self._output) in ([], [token_id])
        if is_allowed:
            self._output.append(token_id)
        return is_allowed

    def replay(self, token_ids: AnySequence[int]) -> bool:
        return all(map(self.accept, token_ids))

    def forced_tokens(self) -> list[int]:
        found: list[int] = []
        while len(found) < 6 and (more := forced_tokens([*self._output, *found])):
            found += more
        return found


class UnhurriedGrammars:
    """Grammars that take a random number of steps to compile; in place of engine.grammar_queue.GrammarQueue."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._waiting: dict[int, list[Sequence]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._waiting

    def add(self, sequences: list[Sequence]) -> None:
        self._waiting[sequences[0].request.request_id] = sequences

    def pop_compiled(self) -> list[Compiled]:
        done = [request_id for request_id in self._waiting if self._rng.random() < 0.5]
        return [Compiled(self._waiting.pop(one), OutputMatcher(), None) for one in done]  # type: ignore[arg-type]

    def abort(self, request_id: int, *, index: int | None = None) -> list[Sequence]:
        dropped = [one for one in self._waiting.get(request_id, []) if index in (None, one.index)]
        left = [one for one in self._waiting.pop(request_id, []) if one not in dropped]
        if left:
            self._waiting[request_id] = left
        return dropped

    def wait(self, seconds: float) -> None:
        pass


class HashedSamples:
    """In place of engine.sampler.Samples."""

    def __init__(self, tokens: list[int], logprobs: dict[int, TokenLogprobs]) -> None:
        self.tokens = torch.tensor(tokens, dtype=torch.int64)
        self._logprobs = logprobs

    def read(self) -> tuple[Int64, dict[int, TokenLogprobs]]:
        return self.tokens.numpy(), dict(self._logprobs)


class HashingRunner:
    """Stand-in for engine.loop.runner.Runner; the log-probability of a token is reported as its `rank`."""

    work = SimpleNamespace(observe=lambda plan: None, num_operations=0.0, num_read_bytes=0.0, num_written_bytes=0.0)

    def __init__(self, config: EngineConfig, *, num_host_blocks: int) -> None:
        assert config.num_kv_blocks is not None
        self.config = config
        self.num_kv_blocks = config.num_kv_blocks
        self.products = None
        copying = SwapRule(seconds_per_block=0.0, seconds_per_token=1.0)
        self.swap = SwapSpace(num_host_blocks, copying) if num_host_blocks else None
        self.most_rows = 0
        self._slots = [_NOTHING] * (config.num_kv_blocks + 1) * config.block_size
        self._host_blocks = [[_NOTHING] * config.block_size for _ in range(num_host_blocks)]
        self._prefix_slots: dict[Sequence, list[Slot]] = {}

    def adapter(self, folder: str) -> LoadedAdapter:
        raise InvalidRequestError(f"no adapter {folder}")

    def forward(self, plan: StepPlan, table: SeatTable, *, pending: PendingTokens | None = None) -> list[Row]:
        """Write the step's slots and return the rows to sample."""
        self._copy(plan)
        arrays = build_arrays(plan, table, block_size=self.config.block_size)
        tokens = torch.from_numpy(arrays.token_ids.copy())
        assert pending is not None or not arrays.pending_rows.size
        if pending is not None:
            pending.write(tokens, arrays)
        rows = self._compute(arrays, tokens.tolist())
        for index, sequence in enumerate(plan.sequences):
            self._check_context(sequence, self._slots_of(arrays, index))
        self._score_prompts(plan, arrays)
        return [rows[row] for row in arrays.sampled_rows.tolist()]

    def sample(
        self, plan: StepPlan, logits: list[Row] | None, *, rows: list[int] | None = None
    ) -> HashedSamples | None:
        if not logits or rows == []:
            return None
        left = iter(logits if rows is None else [logits[row] for row in rows])
        tokens: list[int] = []
        logprobs: dict[int, TokenLogprobs] = {}
        for sequence, num_sampled in plan.sampling():
            assert sequence.num_pending == 0, "sampled before the token before it is known"
            params, known = sequence.request.params, sequence.token_ids[sequence.num_prompt_tokens :]
            for offset in range(num_sampled):
                output = [*known, *sequence.draft_token_ids[:offset]]
                token = next_token(next(left), output, seed=sequence.seed, params=params)
                if params.logprobs is not None:
                    logprobs[len(tokens)] = _told_as_rank(token)
                tokens.append(token)
        assert next(left, None) is None, "a row is sampled for nobody"
        self.most_rows = max(self.most_rows, len(tokens))
        return HashedSamples(tokens, logprobs)

    def _copy(self, plan: StepPlan) -> None:
        size = self.config.block_size
        for copy in plan.copies_out:
            for block, host_block in zip(copy.device_blocks, copy.host_blocks, strict=True):
                self._host_blocks[host_block] = self._slots[block * size : (block + 1) * size]
        for copy in plan.copies_in:
            for block, host_block in zip(copy.device_blocks, copy.host_blocks, strict=True):
                self._slots[block * size : (block + 1) * size] = self._host_blocks[host_block]

    def _compute(self, arrays: StepArrays, tokens: list[int]) -> list[Row]:
        """Go on from the slot before each sequence's first token; all read before any writes."""
        rows: list[Row] = []
        written: dict[int, Slot] = {}
        for index, first in enumerate(arrays.query_start[:-1].tolist()):
            start = int(arrays.positions[first])
            state = self._slots_of(arrays, index)[start - 1][0] if start else 0
            for row in range(first, int(arrays.query_start[index + 1])):
                state = mixed(state, tokens[row])
                rows.append((state, tokens[row]))
                slot = int(arrays.slots[row])
                assert slot not in written, "two tokens have one slot"
                assert slot < 0 or slot >= self.config.block_size, "the null block is written"
                if slot >= 0:
                    written[slot] = (state, int(arrays.positions[row]))
        for slot, value in written.items():
            self._slots[slot] = value
        return rows

    def _slots_of(self, arrays: StepArrays, index: int) -> list[Slot]:
        """Return what a sequence's context holds."""
        size, count = self.config.block_size, int(arrays.context_lens[index])
        blocks = arrays.block_tables[index].tolist()[: -(-count // size)]
        return [slot for block in blocks for slot in self._slots[block * size : (block + 1) * size]][:count]

    def _check_context(self, sequence: Sequence, held: list[Slot]) -> None:
        prefix = self._prefix_slots.setdefault(sequence, [])
        for position in range(len(prefix), len(sequence.token_ids)):
            state = prefix[-1][0] if prefix else 0
            prefix.append((mixed(state, sequence.token_ids[position]), position))
        count = min(len(held), len(prefix))
        assert held[:count] == prefix[:count], f"the cache of request {sequence.request.request_id} is not its own"

    def _score_prompts(self, plan: StepPlan, arrays: StepArrays) -> None:
        for part in prompt_parts(plan, arrays.query_start, max_rows=5):
            following = [part.sequence.token_ids[arrays.positions[row] + 1] for row in part.rows]
            assert following == part.token_ids
            assert part.sequence.prompt_logprobs is not None
            part.sequence.prompt_logprobs += map(_told_as_rank, part.token_ids)


def _told_as_rank(token: int) -> TokenLogprobs:
    return TokenLogprobs(logprob=0.0, rank=token, top_token_ids=[], top_logprobs=[])
