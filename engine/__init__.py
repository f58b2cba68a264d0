"""Run decoder language models: token ids in, token ids out, batched continuously over a paged KV cache.

Encoders are in `engine.pooling`: texts in, vectors or scores out.
Names are loaded on first use, so that `import engine.process.messages` costs neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.build import build_engine
    from engine.config import EngineConfig
    from engine.errors import (
        BrokenRowError,
        EngineBroken,
        EngineDied,
        EngineError,
        EngineForked,
        EngineStartError,
        InvalidConfigError,
        InvalidParamsError,
        InvalidRequestError,
        ModelLoadError,
        UnsupportedModelError,
    )
    from engine.llm import LLM
    from engine.loop.core import Engine
    from engine.outputs import CompletionOutput, Logprob, RequestOutput
    from engine.params import SamplingParams
    from engine.pooling.embedder import Embedder, Embeddings
    from engine.pooling.reranker import Reranker, Scores
    from engine.process.parent import EngineProcess
    from engine.scheduling.request import NewRequest
    from engine.stats import EngineStats
    from engine.structured import StructuredOutput

_HOME = {
    "LLM": "llm",
    "BrokenRowError": "errors",
    "CompletionOutput": "outputs",
    "Embedder": "pooling.embedder",
    "Embeddings": "pooling.embedder",
    "Engine": "loop.core",
    "EngineBroken": "errors",
    "EngineConfig": "config",
    "EngineDied": "errors",
    "EngineError": "errors",
    "EngineForked": "errors",
    "EngineProcess": "process.parent",
    "EngineStartError": "errors",
    "EngineStats": "stats",
    "InvalidConfigError": "errors",
    "InvalidParamsError": "errors",
    "InvalidRequestError": "errors",
    "Logprob": "outputs",
    "ModelLoadError": "errors",
    "NewRequest": "scheduling.request",
    "RequestOutput": "outputs",
    "Reranker": "pooling.reranker",
    "SamplingParams": "params",
    "Scores": "pooling.reranker",
    "StructuredOutput": "structured",
    "UnsupportedModelError": "errors",
    "build_engine": "build",
}

__all__ = [
    "LLM",
    "BrokenRowError",
    "CompletionOutput",
    "Embedder",
    "Embeddings",
    "Engine",
    "EngineBroken",
    "EngineConfig",
    "EngineDied",
    "EngineError",
    "EngineForked",
    "EngineProcess",
    "EngineStartError",
    "EngineStats",
    "InvalidConfigError",
    "InvalidParamsError",
    "InvalidRequestError",
    "Logprob",
    "ModelLoadError",
    "NewRequest",
    "RequestOutput",
    "Reranker",
    "SamplingParams",
    "Scores",
    "StructuredOutput",
    "UnsupportedModelError",
    "build_engine",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    return getattr(importlib.import_module(f"engine.{_HOME[name]}"), name)
