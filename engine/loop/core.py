"""The engine: requests in as token ids, tokens out step by step. No text, no processes, no clocks.

step_loop.py defines a step. A request that cannot run gets an error delta in the next step; it never raises into the
loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from engine.device.choice import ResolvedConfig
from engine.device.energy import EnergyMeter
from engine.errors import InvalidRequestError
from engine.grammars import output as grammar_output
from engine.grammars.thinking import ThinkingMatcher, is_followed
from engine.grammars.waiting import Compiled, GrammarQueue
from engine.loop.compute import StepRunner
from engine.loop.intake import EngineInfo, already_running, check_output_so_far, check_weight, resolve_max_tokens
from engine.loop.pending import PendingTokens
from engine.loop.recorder import Recorded, Recorder
from engine.loop.step_loop import StepLoop
from engine.outputs import FinishReason, TokenDelta
from engine.scheduling.decisions import Decision
from engine.scheduling.request import NewRequest, Request, Sequence, derive_seed
from engine.scheduling.scheduler import Scheduler
from engine.stats import Energy, EngineLoad, EngineStats, SpeculationCounters, snapshot

_GRAMMAR_WAIT_SECONDS = 0.02
"""How long an idle step waits for a grammar to be compiled before new requests are checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineParts:
    """The parts of an engine, assembled by engine/build.py."""

    config: ResolvedConfig
    runner: StepRunner
    scheduler: Scheduler
    recorder: Recorder
    loop: StepLoop[Tensor | None, PendingTokens, Recorded, list[TokenDelta]]
    grammars: GrammarQueue
    energy: EnergyMeter


class Engine:
    """Run requests over one model. Not thread-safe: owned by one loop."""

    def __init__(self, parts: EngineParts) -> None:
        self.config = config = parts.config
        self.scheduler = parts.scheduler
        self.info = EngineInfo(
            num_kv_blocks=parts.runner.num_kv_blocks,
            block_size=config.asked.block_size,
            max_model_len=config.scheduler.max_model_len,
            vocab_size=config.model.vocab_size,
            eos_token_ids=config.model.eos_token_ids,
            device=str(config.device),
            dtype=str(config.dtype).removeprefix("torch."),
            products=parts.runner.products,
        )
        self.loop = parts.loop
        self._runner = parts.runner
        self._recorder = parts.recorder
        self._grammars = parts.grammars
        self._energy = parts.energy
        self._eos_token_ids = frozenset(config.model.eos_token_ids)
        self._num_arrivals = 0
        self._unreported: list[TokenDelta] = []

    @property
    def has_work(self) -> bool:
        """Tell whether a step would compute or report anything."""
        return bool(self._unreported) or self.scheduler.has_work or len(self._grammars) > 0

    def add(self, new: NewRequest) -> None:
        """Queue a request; the next step reports a refusal as finish_reason "error" for each child.

        Raises InvalidRequestError if an unfinished request has the same id.
        """
        request_id, params = new.request_id, new.params
        if request_id in self._grammars or self.scheduler.has_request(request_id):
            raise already_running(request_id)
        try:
            max_tokens = resolve_max_tokens(new.prompt_token_ids, params, self.info)
            check_weight(new.weight)
            check_output_so_far(new.output_token_ids, params, vocab_size=self.info.vocab_size)
            adapter = None if new.adapter is None else self._runner.adapter(new.adapter)
        except InvalidRequestError as error:
            self._end_all(request_id, params.n, FinishReason.ERROR, error=str(error))
            return
        has_all = 0 < max_tokens <= len(new.output_token_ids)  # of a run whose max_tokens were larger
        if has_all or (max_tokens == 0 and params.prompt_logprobs is None):
            self._end_all(request_id, params.n, FinishReason.LENGTH)
            return
        self._num_arrivals += 1
        self._recorder.counters.num_prompt_tokens += len(new.prompt_token_ids)
        request = Request.accept(
            new,
            max_tokens=max_tokens,
            seed=derive_seed(self.config.asked.seed, request_id) if params.seed is None else params.seed,
            eos_token_ids=self._eos_token_ids,
            arrival=self._num_arrivals,
            loaded_adapter=adapter,
        )
        pool = self.scheduler.pool
        now = self.scheduler.pace.now()
        owner = request.prefix_owner
        sequences = [Sequence(request, index, pool.chain(owner), arrived_at=now) for index in range(params.n)]
        if max_tokens == 0 or not is_followed(params):
            self.scheduler.add(sequences)
        elif params.structured is None:
            self._start(Compiled(sequences, ThinkingMatcher.of(request, None), None))
        else:
            self._grammars.add(sequences)

    def abort(self, request_ids: Iterable[int]) -> None:
        """End requests at once; the next step reports "abort" for each unfinished child, without a token."""
        for request_id in request_ids:
            self._abort(request_id)

    def abort_children(self, children: Iterable[tuple[int, int]]) -> None:
        """End single children, given as (request id, index), like `abort`. Other children continue."""
        for request_id, index in children:
            self._abort(request_id, index=index)

    def step(self) -> list[TokenDelta]:
        """Run one step; return the deltas that are due: ends, refusals, aborts, and all of requests with stop strings.

        Tokens of other sequences are held, for `release` or the sequence's next delta. With overlap, tokens are
        reported one step after the one that samples them.
        """
        self._start_compiled()
        deltas, self._unreported = self._unreported, []
        if self.scheduler.has_work:
            if not self.loop.overlaps:
                self._draft_forced()
            deltas += self.loop.step() or []
        elif not deltas:
            self._grammars.wait(_GRAMMAR_WAIT_SECONDS)
        return deltas

    def release(self) -> list[TokenDelta]:
        """Return the tokens that steps have held: one delta for each sequence with some."""
        return self._recorder.release()

    def decisions(self, request_id: int | None = None) -> list[Decision]:
        """Return why requests were delayed, started or preempted, oldest first; for one request, also why it waits now.

        The last few thousand are kept, and the last 16 of each unfinished request; `decisions.sentence` formats one as
        text.
        """
        return self.scheduler.decisions(request_id)

    def new_decisions(self) -> list[Decision]:
        """With `report_decisions`, return the decisions since the last call, oldest first; otherwise none."""
        return self.scheduler.new_decisions() if self.config.asked.report_decisions else []

    def running_request_ids(self) -> list[int]:
        """Return the ids of requests with a seated sequence, each once."""
        return list({sequence.request.request_id for sequence in self.scheduler.running_sequences()})

    def stats(self) -> EngineStats:
        """Return the counters and the present state."""
        scheduler, recorder = self.scheduler, self._recorder
        return EngineStats(
            load=EngineLoad(
                num_running=scheduler.num_running,
                num_waiting=scheduler.num_waiting + self._grammars.num_sequences,
                max_num_seqs=self.config.scheduler.max_num_seqs,
                num_blocks=self.info.num_kv_blocks,
                num_used_blocks=scheduler.pool.num_used,
                num_cached_blocks=scheduler.pool.num_cached,
            ),
            scheduler=snapshot(scheduler.counters),
            cache=snapshot(scheduler.cache_counters),
            requests=snapshot(recorder.counters),
            speculation=SpeculationCounters() if self.loop.drafter is None else snapshot(self.loop.drafter.counters),
            work=snapshot(self._runner.work.counters),
            energy=Energy(num_joules=self._energy.joules),
            timings=recorder.timings.snapshot(),
            sizes=scheduler.sizes.snapshot(),
        )

    def _abort(self, request_id: int, *, index: int | None = None) -> None:
        waiting = self._grammars.abort(request_id, index=index)
        for sequence in (*waiting, *self.scheduler.abort(request_id, index=index)):
            self._unreported.append(self._recorder.last_delta(sequence, FinishReason.ABORT))

    def _start_compiled(self) -> None:
        """Start the requests whose grammar is compiled; answer those whose grammar cannot be used."""
        for compiled in self._grammars.pop_compiled():
            self._start(compiled)

    def _start(self, compiled: Compiled) -> None:
        """Give the children of a request their matchers, and queue those that have not ended."""
        deltas = [grammar_output.start(sequence, compiled) for sequence in compiled.sequences]
        self._recorder.count_forced(sum(len(delta.token_ids) for delta in deltas))
        self._unreported += [delta for delta in deltas if delta.token_ids or delta.finish_reason is not None]
        unfinished = [delta.index for delta in deltas if delta.finish_reason is None]
        self._recorder.counters.num_finished += len(deltas) - len(unfinished)
        if unfinished:
            self.scheduler.add([sequence for sequence in compiled.sequences if sequence.index in unfinished])

    def _draft_forced(self) -> None:
        """Draft the tokens that a grammar forces: they are certain, so they take precedence over guesses."""
        for sequence in self.scheduler.running_sequences():
            if sequence.matcher is not None and sequence.has_prompt_computed:
                sequence.draft_token_ids = grammar_output.forced_drafts(sequence)

    def _end_all(self, request_id: int, n: int, reason: FinishReason, *, error: str | None = None) -> None:
        self._recorder.counters.num_finished += n
        self._unreported.extend(
            TokenDelta(request_id=request_id, index=index, finish_reason=reason, error=error) for index in range(n)
        )
