"""What each kind of server calls a parameter, and which needs of lines it claims to meet: one row a kind.

Facts from the servers' sources and documentation, November 2026. What a server really does is seen by probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from jobs.lines.body_template import BUDGET, CONTINUE, EFFORT, VARIABLES
from jobs.lines.needs import Need

_PLAIN = Need.SEED | Need.STOP | Need.PRESENCE_PENALTY | Need.FREQUENCY_PENALTY | Need.JSON | Need.JSON_OBJECT
_OPENAI = _PLAIN | Need.N | Need.LOGPROBS | Need.LOGIT_BIAS | Need.TOOLS
_TOKENS = Need.TOKEN_PROMPTS | Need.MANY_PROMPTS | Need.ECHO
_OWN_SAMPLING = Need.TOP_K | Need.MIN_P | Need.REPETITION_PENALTY


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of server."""

    kind: str
    """Its name in results and tables."""
    meets: Need
    names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Its names of sampling parameters that OpenAI's API lacks; those without an entry are not sent."""
    neutral: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Sent with every line that does not say otherwise, as the server has defaults of its own."""
    most_seed: int = 2**63 - 1
    has_structured_outputs: bool = False
    """Whether it takes vLLM's `structured_outputs`."""
    puts_schema_into_json_object: bool = False
    """Whether a schema goes into `{"type": "json_object", "schema": …}` instead of `json_schema`."""
    asks_for_strict_tools: bool = False
    """Whether arguments of a call that must be made follow their schema only where the tool is `strict`."""
    takes_tool_by_name: bool = True
    """Whether `tool_choice` may name a tool. Else that tool alone is offered and a call is required."""
    least_logprobs: int = 0
    """Alternatives of a token that must be asked for to get its log-probability."""
    template: frozenset[str] = frozenset({EFFORT})
    """What it takes for the chat template and the thoughts of a conversation."""
    token_limit: str = "max_tokens"
    num_seats: int = 16
    """Requests at once at the start, where the server does not tell its slots."""
    max_seats: int = 256
    """Requests at once, at most."""


_SAME = ("top_k", "min_p", "repetition_penalty")
_VLLM_NAMES = (
    *_SAME,
    *("allowed_token_ids", "bad_words", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens"),
    *("skip_special_tokens", "prompt_logprobs"),
)
_SGLANG_NAMES = (*_SAME, "stop_token_ids", "ignore_eos", "min_tokens", "skip_special_tokens")

VLLM = Dialect(
    kind="vllm",
    # Compact JSON is a setting of its server; the field of a request is not read (0.32, seen 2026-11-28).
    meets=~Need.COMPACT_JSON,
    names={name: name for name in _VLLM_NAMES},
    # Its default is the model's generation_config.json.
    neutral={"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0},
    has_structured_outputs=True,
    template=frozenset({VARIABLES, BUDGET, CONTINUE}),
    asks_for_strict_tools=True,  # else they may be any value, even Infinity (0.32, seen 2026-11-28)
    num_seats=64,
    max_seats=1024,
)
SGLANG = Dialect(
    kind="sglang",
    meets=_OPENAI
    | _TOKENS
    | _OWN_SAMPLING
    | Need.STOP_TOKEN_IDS
    | Need.IGNORE_EOS
    | Need.MIN_TOKENS
    | Need.SKIP_SPECIAL_TOKENS,
    names={name: name for name in _SGLANG_NAMES},
    neutral={"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0},
    template=frozenset({VARIABLES, CONTINUE}),
    num_seats=64,
    max_seats=1024,
)
LLAMA_SERVER = Dialect(
    kind="llama.cpp",
    meets=(_OPENAI & ~Need.N) | Need.TOKEN_PROMPTS | _OWN_SAMPLING | Need.IGNORE_EOS,
    names={"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty", "ignore_eos": "ignore_eos"},
    neutral={"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0},
    template=frozenset({VARIABLES}),
    takes_tool_by_name=False,  # it reads an object as "auto" (b11549, seen 2026-11-28)
    least_logprobs=1,
    most_seed=2**32 - 2,  # 2^32 − 1 asks for a random one
    num_seats=4,
)
LLAMA_CPP_PYTHON = Dialect(
    kind="llama-cpp-python",
    meets=(_PLAIN | Need.LOGPROBS | Need.LOGIT_BIAS | Need.TOOLS | _OWN_SAMPLING),
    names={"top_k": "top_k", "min_p": "min_p", "repetition_penalty": "repeat_penalty"},
    neutral={"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0},
    template=frozenset(),
    most_seed=2**31 - 1,
    puts_schema_into_json_object=True,
    num_seats=1,
    max_seats=2,  # it computes one request at a time
)
OLLAMA = Dialect(kind="ollama", meets=_PLAIN | Need.TOOLS, most_seed=2**31 - 1, num_seats=4)
LM_STUDIO = Dialect(kind="lm-studio", meets=_PLAIN | Need.LOGPROBS | Need.TOOLS, most_seed=2**31 - 1, num_seats=4)
OPENAI = Dialect(kind="openai", meets=_OPENAI | Need.MANY_PROMPTS, token_limit="max_completion_tokens")
OTHER = Dialect(kind="other", meets=_OPENAI | Need.MANY_PROMPTS, most_seed=2**31 - 1)
"""A server of no known kind: OpenAI's parameters under their older names."""

DIALECTS: Mapping[str, Dialect] = {
    one.kind: one for one in (VLLM, SGLANG, LLAMA_SERVER, LLAMA_CPP_PYTHON, OLLAMA, LM_STUDIO, OPENAI, OTHER)
}
