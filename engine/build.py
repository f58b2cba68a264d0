"""Build an engine from its configuration: resolve open settings, load the model, assemble the parts.

Configuration is passed down only: no part built here learns another part's configuration.
"""

from __future__ import annotations

from engine.config import EngineConfig
from engine.device.choice import ResolvedConfig, choose_device, resolve, wanted_dtype
from engine.device.energy import EnergyMeter
from engine.grammars.compiler import GrammarCompiler
from engine.grammars.grammar import GrammarTokens
from engine.grammars.waiting import GrammarQueue
from engine.loop.compute import ModelCompute, StepRunner
from engine.loop.core import Engine, EngineParts
from engine.loop.recorder import Recorder
from engine.loop.runner import Runner
from engine.loop.step_loop import StepLoop
from engine.models.config import CheckpointConfig, ModelConfig, load_model_config
from engine.scheduling.blocks import BlockPool
from engine.scheduling.request import Matcher
from engine.scheduling.scheduler import Scheduler
from engine.speculation.drafter import make_drafter
from kernels.cpu import begin_to_compile_attention
from kernels.write_kv import preferred_cache_dtype


def build_engine(config: EngineConfig, *, scheduler_type: type[Scheduler] = Scheduler) -> Engine:
    """Load the model and return its engine. Raises ModelLoadError, UnsupportedModelError or InvalidConfigError."""
    model, device = load_model_config(config.model, impl=config.model_impl), choose_device(config.device)
    if config.warm_up and device.type == "cpu" and isinstance(model, ModelConfig):
        _begin_to_compile(model, config.dtype)
    resolved = resolve(config, model, device)
    return assemble(resolved, Runner(resolved), scheduler_type=scheduler_type)


def assemble(config: ResolvedConfig, runner: StepRunner, *, scheduler_type: type[Scheduler] = Scheduler) -> Engine:
    """Return an engine over an existing runner."""
    pool = BlockPool(runner.num_kv_blocks + 1, config.asked.block_size)
    scheduler = scheduler_type(pool, config.scheduler, swap=runner.swap)
    recorder = Recorder(scheduler)
    return Engine(
        EngineParts(
            config=config,
            runner=runner,
            scheduler=scheduler,
            recorder=recorder,
            loop=StepLoop(
                scheduler,
                ModelCompute(runner, recorder, scheduler.seat_table),
                overlaps=config.overlap,
                drafter=make_drafter(config.asked),
            ),
            grammars=_grammars(config.model, timeout_seconds=config.asked.grammar_timeout_seconds),
            energy=EnergyMeter(config.device),
        )
    )


def _begin_to_compile(model: ModelConfig, asked_dtype: str) -> None:
    """Start to compile attention in the background before its dtype is resolved, which needs other kernels first.

    The guess is the configured dtype or the checkpoint's; if it is wrong, the model starts the right kernel.
    """
    dtype = wanted_dtype(asked_dtype, model)
    if dtype is not None:
        begin_to_compile_attention(dtype, preferred_cache_dtype("cpu", dtype), model.head_dim)


def _grammars(model: CheckpointConfig, *, timeout_seconds: float) -> GrammarQueue:
    tokens = GrammarTokens(model.path, vocab_size=model.vocab_size, eos_token_ids=model.eos_token_ids)
    compiler = GrammarCompiler[Matcher](
        tokens, timeout_seconds=timeout_seconds, is_spent=lambda matcher: matcher.is_spent
    )
    return GrammarQueue(compiler)
