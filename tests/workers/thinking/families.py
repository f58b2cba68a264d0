"""Chat templates of models that think, each with a tiny tokenizer that has the tokens its model's has.

The templates are the models' own; `templates/SOURCES.md` names their sources and licences. Of the tokens, those are
here that the templates write.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tests.workers.chat_templates import Family, tokenizer_of

_TEMPLATES = Path(__file__).parent / "templates"


def _family(file: str, *special: str, added: tuple[str, ...] = (), bos: str | None = None, eos: str) -> Family:
    template = (_TEMPLATES / f"{file}.jinja").read_text(encoding="utf-8")
    return Family(template=template, special=special, added=added, bos=bos, eos=eos)


_THINK = ("<think>", "</think>")
_TOOLS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_DEEPSEEK_BOS, _DEEPSEEK_EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
_DEEPSEEK_TURNS = ("<｜User｜>", "<｜Assistant｜>")
_EDGES = [f"{part}▁{edge}" for part in ("calls", "call", "outputs", "output") for edge in ("begin", "end")]
_DEEPSEEK_CALLS = tuple(f"<｜tool▁{name}｜>" for name in (*_EDGES, "sep"))
_GLM = ("[gMASK]", "<sop>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "/nothink")
_GLM_ADDED = (*_THINK, *_TOOLS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_PAIRED = ("turn", "channel", "tool", "tool_call", "tool_response")

THINKING = {
    "qwen3": _family("qwen3", *_IM, added=(*_TOOLS, *_THINK), eos="<|im_end|>"),
    "qwen3.5": _family("qwen3_5", *_IM, added=(*_TOOLS, *_THINK), eos="<|im_end|>"),
    "qwq": _family("qwq", *_IM, added=(*_TOOLS, *_THINK), eos="<|im_end|>"),
    "gpt-oss": _family(
        "gpt_oss",
        *("<|return|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|end|>"),
        eos="<|return|>",
    ),
    "r1": _family(
        "deepseek_r1_distill",
        *(_DEEPSEEK_BOS, _DEEPSEEK_EOS),
        added=(*_DEEPSEEK_TURNS, *_DEEPSEEK_CALLS, *_THINK),
        bos=_DEEPSEEK_BOS,
        eos=_DEEPSEEK_EOS,
    ),
    "deepseek-v3.1": _family(
        "deepseek_v3_1",
        *(_DEEPSEEK_BOS, _DEEPSEEK_EOS),
        added=(*_DEEPSEEK_TURNS, *_DEEPSEEK_CALLS, *_THINK),
        bos=_DEEPSEEK_BOS,
        eos=_DEEPSEEK_EOS,
    ),
    "ministral": _family(
        "ministral_3_reasoning",
        *("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[THINK]", "[/THINK]", "[IMG]"),
        *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        bos="<s>",
        eos="</s>",
    ),
    "seed-oss": _family(
        "seed_oss",
        *("<seed:bos>", "<seed:eos>", "<seed:pad>", "<seed:think>", "</seed:think>"),
        *("<seed:cot_budget_reflect>", "</seed:cot_budget_reflect>", "<seed:tool_call>", "</seed:tool_call>"),
        bos="<seed:bos>",
        eos="<seed:eos>",
    ),
    "smollm3": _family("smollm3", "<|begin_of_text|>", *_IM[1:], added=_THINK, eos="<|im_end|>"),
    "step-3.5": _family(
        "step_3_5_flash", _DEEPSEEK_BOS, *_IM, added=(*_TOOLS, *_THINK), bos=_DEEPSEEK_BOS, eos="<|im_end|>"
    ),
    "glm-4.6": _family("glm_4_6", *_GLM, added=_GLM_ADDED, eos="<|endoftext|>"),
    "glm-4.7": _family("glm_4_7_flash", *_GLM, added=_GLM_ADDED, eos="<|endoftext|>"),
    "gemma-4": _family(
        "gemma_4",
        *("<bos>", "<eos>", "<|think|>", '<|"|>', "<|image|>", "<|audio|>", "<|video|>"),
        *(f"<|{name}>" for name in _PAIRED),
        *(f"<{name}|>" for name in _PAIRED),
        bos="<bos>",
        eos="<turn|>",
    ),
    "apertus": _family(
        "apertus",
        *("<s>", "<|inner_prefix|>", "<|inner_suffix|>", "<|tools_prefix|>", "<|tools_suffix|>"),
        *(f"<|{role}_{edge}|>" for role in ("system", "developer", "user", "assistant") for edge in ("start", "end")),
        bos="<s>",
        eos="<|assistant_end|>",
    ),
}

ON: dict[str, dict[str, Any]] = {
    "gemma-4": {"chat_template_kwargs": {"enable_thinking": True}},
    "deepseek-v3.1": {"chat_template_kwargs": {"thinking": True}},
}
"""Parameters of lines that make a model think which does not by itself."""

WORDY = {
    "granite": _family(
        "granite_3_3",
        *("<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|start_of_cite|>", "<|end_of_cite|>"),
        eos="<|end_of_text|>",
    ),
}
"""Their marks of thoughts are ordinary text."""


@cache
def thinking_tokenizer(name: str) -> Any:
    return tokenizer_of((THINKING | WORDY)[name])
