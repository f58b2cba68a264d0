"""The engine: requests in as token ids, tokens out step by step. No text, no processes, no clocks.

One step is: schedule, run, record, end what is done. A request that cannot run is answered by an error delta in the
next step; it never raises into the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass

from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.errors import InvalidConfigError, InvalidRequestError
from engine.model_config import ModelConfig, load_model_config
from engine.outputs import EngineStats, FinishReason, TokenDelta
from engine.params import SamplingParams
from engine.plan import SchedulerLimits
from engine.request import Request, Sequence, derive_seed
from engine.runner import Runner, sampling_sequences
from engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What a loaded engine can do. `num_kv_blocks` is what requests can use."""

    num_kv_blocks: int
    block_size: int
    max_model_len: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    device: str
    dtype: str


class Engine:
    """Run requests over one model. Not thread-safe: one loop owns it."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.model = load_model_config(config.model)
        max_model_len = _max_model_len(config, self.model)
        self._runner = Runner(config, self.model, max_model_len=max_model_len)
        self.info = EngineInfo(
            num_kv_blocks=self._runner.num_kv_blocks,
            block_size=config.block_size,
            max_model_len=max_model_len,
            vocab_size=self.model.vocab_size,
            eos_token_ids=self.model.eos_token_ids,
            device=str(self._runner.device),
            dtype=str(self._runner.dtype).removeprefix("torch."),
        )
        self.scheduler = Scheduler(
            BlockPool(self._runner.num_kv_blocks + 1, config.block_size),
            SchedulerLimits(
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_model_len=max_model_len,
            ),
            enable_prefix_caching=config.enable_prefix_caching,
            batching=config.batching,
            admission=config.admission,
        )
        self._pending: list[TokenDelta] = []
        self._num_arrivals = 0
        self._num_prompt_tokens = 0
        self._num_output_tokens = 0
        self._num_finished = 0

    @property
    def has_work(self) -> bool:
        """Tell whether a step would do or report anything."""
        return bool(self._pending) or self.scheduler.has_work

    def add(
        self,
        request_id: int,
        prompt_token_ids: AnySequence[int],
        *,
        params: SamplingParams,
        priority: int = 0,
        deadline: float | None = None,
        salt: str = "",
    ) -> None:
        """Take a request; a refusal is reported by the next step as finish_reason "error" for each child."""
        try:
            max_tokens = self._check(prompt_token_ids, params)
        except InvalidRequestError as error:
            self._end_all(request_id, params.n, FinishReason.ERROR, error=str(error))
            return
        if max_tokens == 0:
            self._end_all(request_id, params.n, FinishReason.LENGTH)
            return
        self._num_arrivals += 1
        self._num_prompt_tokens += len(prompt_token_ids)
        request = Request(
            request_id=request_id,
            prompt_token_ids=list(prompt_token_ids),
            params=params,
            max_tokens=max_tokens,
            seed=derive_seed(self.config.seed, request_id) if params.seed is None else params.seed,
            eos_token_ids=frozenset(self.model.eos_token_ids),
            arrival=self._num_arrivals,
            priority=priority,
            deadline=deadline,
            salt=salt,
        )
        pool = self.scheduler.pool
        self.scheduler.add([Sequence(request, index, pool.chain(salt)) for index in range(params.n)])

    def abort(self, request_ids: Iterable[int]) -> None:
        """End requests at once; the next step reports "abort" for each unfinished child, and no token."""
        for request_id in request_ids:
            for sequence in self.scheduler.abort(request_id):
                self._pending.append(_last_delta(sequence, FinishReason.ABORT))
                self._num_finished += 1

    def step(self) -> list[TokenDelta]:
        """Run one step and return what is new: one token per sampling sequence, refusals, aborts."""
        deltas, self._pending = self._pending, []
        if self.scheduler.has_work:
            plan = self.scheduler.schedule()
            tokens, logprobs = self._runner.run(plan, self.scheduler.block_tables)
            self.scheduler.advance(plan)
            for place, sequence in enumerate(sampling_sequences(plan)):
                delta = self._take_token(sequence, tokens[place])
                if place in logprobs:
                    delta.logprobs = [logprobs[place]]
                deltas.append(delta)
        return deltas

    def stats(self) -> EngineStats:
        """Return the counters and the present state."""
        scheduler, counters = self.scheduler, self.scheduler.counters
        return EngineStats(
            num_running=scheduler.num_running,
            num_waiting=scheduler.num_waiting,
            num_kv_blocks=self.info.num_kv_blocks,
            num_used_blocks=scheduler.pool.num_used,
            num_cached_blocks=scheduler.pool.num_cached,
            num_steps_total=counters.num_steps,
            num_prompt_tokens_total=self._num_prompt_tokens,
            num_output_tokens_total=self._num_output_tokens,
            num_computed_tokens_total=counters.num_computed_tokens,
            num_cached_tokens_total=counters.num_cached_tokens,
            num_preemptions_total=counters.num_preemptions,
            num_finished_total=self._num_finished,
            num_seqs_total=counters.num_seqs,
            num_block_steps_total=counters.num_used_blocks,
            num_slot_steps_total=counters.num_slots,
            num_written_slot_steps_total=counters.num_written_slots,
        )

    def _take_token(self, sequence: Sequence, token_id: int) -> TokenDelta:
        end = sequence.append(token_id)
        self._num_output_tokens += 1
        delta = TokenDelta(
            request_id=sequence.request.request_id,
            index=sequence.index,
            token_ids=[token_id],
            num_cached_tokens=sequence.num_cached_tokens,
        )
        if end is not None:
            delta.finish_reason, delta.stop_reason = end
            self.scheduler.finish(sequence)
            self._num_finished += 1
        return delta

    def _end_all(self, request_id: int, n: int, reason: FinishReason, *, error: str | None = None) -> None:
        self._num_finished += n
        self._pending.extend(
            TokenDelta(request_id=request_id, index=index, finish_reason=reason, error=error) for index in range(n)
        )

    def _check(self, prompt: AnySequence[int], params: SamplingParams) -> int:
        """Return how many tokens a child may generate; raise InvalidRequestError when it can never run.

        Without max_tokens, and at the model's limit, a sequence ends with "length" when its context is full.
        """
        limit, vocab_size = self.info.max_model_len, self.info.vocab_size
        if not prompt:
            raise InvalidRequestError("The prompt has no tokens; give at least one.")
        for token_id in (min(prompt), max(prompt)):
            if not 0 <= token_id < vocab_size:
                raise InvalidRequestError(f"The prompt has token id {token_id}; ids run from 0 to {vocab_size - 1}.")
        for token_id in params.stop_token_ids:
            if token_id >= vocab_size:
                raise InvalidRequestError(f"stop_token_ids has {token_id}; ids run from 0 to {vocab_size - 1}.")
        if len(prompt) >= limit:
            raise InvalidRequestError(
                f"The prompt has {len(prompt)} tokens; this model's context of {limit} must hold it and one more. "
                "Shorten it."
            )
        room = limit - len(prompt)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        capacity = self.info.num_kv_blocks * self.info.block_size
        if params.max_tokens is None:
            max_tokens = min(max_tokens, capacity - len(prompt) + 1)
        # The last token is sampled and never computed, so it needs no slot.
        needed = len(prompt) + max(1, max_tokens) - 1
        if not self.scheduler.can_ever_hold(needed):
            raise InvalidRequestError(
                f"The request needs {needed} tokens of KV cache (prompt {len(prompt)}, max_tokens {max_tokens}) and "
                f"the pool holds {capacity}. Lower max_tokens or raise num_kv_blocks."
            )
        return max_tokens


def _last_delta(sequence: Sequence, reason: FinishReason) -> TokenDelta:
    return TokenDelta(
        request_id=sequence.request.request_id,
        index=sequence.index,
        finish_reason=reason,
        num_cached_tokens=sequence.num_cached_tokens,
    )


def _max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    if config.max_model_len is None:
        return model.max_model_len
    if config.max_model_len > model.max_model_len:
        raise InvalidConfigError(
            f"max_model_len is {config.max_model_len}; {model.path} allows at most {model.max_model_len}."
        )
    return config.max_model_len
