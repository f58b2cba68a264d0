"""The model families that are proven against transformers, and those that are refused, as tiny configurations.

test_models_table.py and test_quantized_checkpoints.py run every entry; models_table.py writes them down.
Nothing here loads a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A supported model_type. `settings` go on top of `TINY`; `shows` names what the configuration exercises."""

    model_type: str
    models: str
    shows: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized:
    """A family whose files are quantized by `quantization_config`; `impls` are whose code runs it.

    `scale_name` is what follows a weight's name in that of its FP8 scales.
    """

    family: Family
    quantization_config: Mapping[str, Any]
    scale_name: str = "_scale_inv"
    impls: tuple[str, ...] = ("transformers",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A model_type that is refused at load with a message that has `reason` in it."""

    model_type: str
    models: str
    reason: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One way to run every family, with the first `num_prompts` of its prompts."""

    name: str
    max_num_batched_tokens: int
    max_num_seqs: int
    is_pool_tiny: bool
    has_prefix_cache: bool
    num_prompts: int = 8


RUNS = (
    Run(name="whole", max_num_batched_tokens=512, max_num_seqs=8, is_pool_tiny=False, has_prefix_cache=True),
    Run(name="cut", max_num_batched_tokens=16, max_num_seqs=8, is_pool_tiny=True, has_prefix_cache=True),
    Run(name="cut small", max_num_batched_tokens=7, max_num_seqs=7, is_pool_tiny=True, has_prefix_cache=False),
    Run(
        name="one by one",
        max_num_batched_tokens=1,
        max_num_seqs=1,
        is_pool_tiny=False,
        has_prefix_cache=True,
        num_prompts=3,
    ),
    Run(name="few a step", max_num_batched_tokens=16, max_num_seqs=4, is_pool_tiny=False, has_prefix_cache=False),
)

SMALLEST_LEAD = 1e-3
"""Logits; by this much the best token leads the second one at every step of a random model that proves something."""

TINY: dict[str, Any] = {
    "vocab_size": 200,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": None,  # so that every output has its full length
    "pad_token_id": 0,
    # Wide weights keep the logits apart, so that fp32 rounding never decides a token.
    "initializer_range": 0.3,
}

_WINDOW_THEN_FULL = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
_SOFT_CAP = {"attn_logit_softcapping": 2.0}  # the models' own 50 would leave logits this small as they are
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_SHARED_EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0] * 8,
    "long_factor": [1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0],
    "original_max_position_embeddings": 30,
}
_MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}

OWN = (
    Family(model_type="llama", models="Llama 1 to 3.3, SmolLM2, TinyLlama, Yi"),
    Family(model_type="mistral", models="Mistral 7B, Mistral Nemo", shows="window 11", settings={"sliding_window": 11}),
    Family(model_type="qwen2", models="Qwen2, Qwen2.5, QwQ", shows="q, k, v biases"),
    Family(model_type="qwen3", models="Qwen3 dense", shows="q and k norms", settings={"head_dim": 16}),
)

THROUGH_TRANSFORMERS = (
    Family(model_type="afmoe", models="Trinity", shows="experts, window 8 and full",
           settings={**_WINDOW_THEN_FULL, **_EXPERTS, "head_dim": 16, "num_dense_layers": 1}),
    Family(model_type="apertus", models="Apertus", shows="xIELU, q and k norms"),
    Family(model_type="arcee", models="AFM", shows="ReLU²"),
    Family(model_type="biogpt", models="BioGPT", shows="learned positions"),
    Family(model_type="cohere", models="Command R", shows="parallel blocks, logit scale"),
    Family(model_type="cohere2", models="Command R7B, Command A", shows="window 8 and full without rope",
           settings=_WINDOW_THEN_FULL),
    Family(model_type="deepseek_v2", models="DeepSeek-V2", shows="MLA, experts",
           settings={**_MLA, **_SHARED_EXPERTS, "topk_method": "greedy"}),
    Family(model_type="deepseek_v3", models="DeepSeek-V3, R1", shows="MLA, experts",
           settings={**_MLA, **_SHARED_EXPERTS}),
    Family(model_type="diffllama", models="DiffLlama", shows="two attentions a layer"),
    Family(model_type="dots1", models="dots.llm1", shows="experts", settings=_SHARED_EXPERTS),
    Family(model_type="ernie4_5", models="ERNIE 4.5 dense", settings={"head_dim": 16}),
    Family(model_type="ernie4_5_moe", models="ERNIE 4.5", shows="experts",
           settings={"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 0}),
    Family(model_type="exaone4", models="EXAONE 4", shows="window 8 and full", settings=_WINDOW_THEN_FULL),
    Family(model_type="flex_olmo", models="FlexOlmo", shows="experts", settings=_EXPERTS),
    Family(model_type="flint", models="Flint", shows="sinks, experts, window 8 and full",
           settings={**_WINDOW_THEN_FULL, **_SHARED_EXPERTS, "head_dim": 16}),
    Family(model_type="gemma", models="Gemma 1", shows="head size 32", settings={"head_dim": 32}),
    Family(model_type="gemma2", models="Gemma 2", shows="soft cap, window 8 and full",
           settings={**_WINDOW_THEN_FULL, **_SOFT_CAP, "head_dim": 16}),
    Family(model_type="gemma3_text", models="Gemma 3 (text)", shows="window 8 and full, two rope tables",
           settings={**_WINDOW_THEN_FULL, "head_dim": 16, "query_pre_attn_scalar": 16}),
    Family(model_type="gemma4_text", models="Gemma 4 (text)", shows="head sizes 16 and 32, window 8 and full",
           settings={**_WINDOW_THEN_FULL, "head_dim": 16, "global_head_dim": 32, "hidden_size_per_layer_input": 16,
                     "vocab_size_per_layer_input": 200}),
    Family(model_type="glm", models="GLM-4 9B", shows="half of the head rotated", settings={"head_dim": 16}),
    Family(model_type="glm4", models="GLM-4 0414", shows="norms after", settings={"head_dim": 16}),
    Family(model_type="glm4_moe", models="GLM-4.5, 4.6", shows="experts", settings={**_SHARED_EXPERTS, "head_dim": 16}),
    Family(model_type="gpt2", models="GPT-2", shows="learned positions"),
    Family(model_type="gpt_bigcode", models="StarCoder, SantaCoder", shows="one KV head, learned positions"),
    Family(model_type="gpt_neox", models="Pythia, GPT-NeoX", shows="parallel blocks, a quarter rotated"),
    Family(model_type="gpt_oss", models="gpt-oss", shows="sinks, experts, window 8 and full, YaRN",
           settings={**_WINDOW_THEN_FULL, **_LOCAL_EXPERTS, "head_dim": 16}),
    Family(model_type="granite", models="Granite 3", shows="four multipliers",
           settings={"attention_multiplier": 0.2, "embedding_multiplier": 2.0, "logits_scaling": 3.0,
                     "residual_multiplier": 0.7}),
    Family(model_type="granite_swa", models="Granite SWA", shows="sinks, full and window 8",
           settings={"sliding_window": 8, "head_dim": 16}),
    Family(model_type="granitemoe", models="Granite 3 MoE", shows="experts", settings=_LOCAL_EXPERTS),
    Family(model_type="granitemoe_swa", models="Granite SWA MoE", shows="sinks, experts, full and window 8",
           settings={**_LOCAL_EXPERTS, "sliding_window": 8, "head_dim": 16}),
    Family(model_type="helium", models="Helium", settings={"head_dim": 16}),
    Family(model_type="hunyuan_v1_dense", models="Hunyuan dense", settings={"head_dim": 16}),
    Family(model_type="internlm3", models="InternLM 3", settings={"head_dim": 16}),
    Family(model_type="mimo_v2_flash", models="MiMo-V2-Flash",
           shows="experts, window 8 with sinks and twice the KV heads, full, values narrower than keys",
           settings={**_WINDOW_THEN_FULL, **_SHARED_EXPERTS, "head_dim": 16, "v_head_dim": 8}),
    Family(model_type="minicpm3", models="MiniCPM 3", shows="MLA", settings=_MLA),
    Family(model_type="minimax_m2", models="MiniMax-M2", shows="experts", settings={**_LOCAL_EXPERTS, "head_dim": 16}),
    Family(model_type="ministral3", models="Ministral 3", settings={"head_dim": 16}),
    Family(model_type="mixtral", models="Mixtral", shows="experts, window 8",
           settings={**_LOCAL_EXPERTS, "sliding_window": 8}),
    Family(model_type="nemotron", models="Nemotron 4, Minitron", shows="ReLU², LayerNorm + 1"),
    Family(model_type="olmo", models="OLMo", shows="LayerNorm without weights"),
    Family(model_type="olmo2", models="OLMo 2", shows="norms after"),
    Family(model_type="olmo3", models="OLMo 3", shows="window 8 and full", settings=_WINDOW_THEN_FULL),
    Family(model_type="olmoe", models="OLMoE", shows="experts", settings=_EXPERTS),
    Family(model_type="opt", models="OPT", shows="learned positions",
           settings={"ffn_dim": 96, "word_embed_proj_dim": 64}),
    Family(model_type="persimmon", models="Persimmon, Adept 8B", shows="half of the head rotated"),
    Family(model_type="phi", models="Phi-1, 1.5, 2", shows="parallel blocks, half rotated"),
    Family(model_type="phi3", models="Phi-3, Phi-4", shows="window 9, longrope from 31 tokens on",
           settings={"sliding_window": 9, "original_max_position_embeddings": 30, "rope_parameters": _LONGROPE}),
    Family(model_type="phimoe", models="Phi-3.5-MoE", shows="experts, longrope from 31 tokens on",
           settings={**_LOCAL_EXPERTS, "rope_parameters": {**_LONGROPE, "short_mscale": 1.0, "long_mscale": 1.5}}),
    Family(model_type="qwen2_moe", models="Qwen1.5-MoE, Qwen2-57B", shows="experts",
           settings={**_EXPERTS, "shared_expert_intermediate_size": 32}),
    Family(model_type="qwen3_moe", models="Qwen3 MoE", shows="experts", settings={**_EXPERTS, "head_dim": 16}),
    Family(model_type="seed_oss", models="Seed-OSS", settings={"head_dim": 16}),
    Family(model_type="smollm3", models="SmolLM3", shows="a layer without rope",
           settings={"no_rope_layers": [1, 0], "no_rope_layer_interval": 2}),
    Family(model_type="stablelm", models="StableLM 2", shows="a quarter of the head rotated"),
    Family(model_type="starcoder2", models="StarCoder 2", shows="window 8", settings={"sliding_window": 8}),
    Family(model_type="vaultgemma", models="VaultGemma", shows="soft cap, window 8 and full",
           settings={**_WINDOW_THEN_FULL, **_SOFT_CAP, "head_dim": 16}),
)  # fmt: skip

_MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
_FP8_WHOLE = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
_AUTO_FP8 = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
_TWO_BLOCKS = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 384}
_PART_OF_A_BLOCK = {"hidden_size": 192, "head_dim": 16, "intermediate_size": 320}

QUANTIZED = (
    Quantized(quantization_config=_MXFP4,
              family=Family(model_type="gpt_oss", models="gpt-oss 20B, 120B", shows="experts in blocks of 32",
                            settings={**_WINDOW_THEN_FULL, **_LOCAL_EXPERTS, "head_dim": 16})),
    Quantized(quantization_config=_FP8, impls=("tokenmill", "transformers"),
              family=Family(model_type="qwen3", models="Qwen3 FP8", shows="blocks of 128 × 128",
                            settings=_TWO_BLOCKS)),
    Quantized(quantization_config=_FP8, impls=("tokenmill", "transformers"),
              family=Family(model_type="llama", models="Llama in block FP8",
                            shows="blocks of 128 × 128, the last ones not whole", settings=_PART_OF_A_BLOCK)),
    Quantized(quantization_config=_FP8,
              family=Family(model_type="qwen3_moe", models="Qwen3 MoE FP8", shows="blocks of 128 × 128, experts",
                            settings={**_TWO_BLOCKS, **_EXPERTS, "moe_intermediate_size": 128})),
    Quantized(quantization_config=_FP8,
              family=Family(model_type="deepseek_v3", models="DeepSeek-V3, R1",
                            shows="blocks of 128 × 128, the last ones not whole, MLA, experts",
                            settings={**_MLA, **_SHARED_EXPERTS, "hidden_size": 256})),
    Quantized(quantization_config=_FP8,
              family=Family(model_type="minimax_m2", models="MiniMax-M2", shows="blocks of 128 × 128, experts",
                            settings={**_LOCAL_EXPERTS, **_TWO_BLOCKS})),
    Quantized(quantization_config=_FP8_WHOLE,
              family=Family(model_type="ministral3", models="Ministral 3 (text) FP8", shows="one scale a weight",
                            settings=_TWO_BLOCKS)),
    Quantized(quantization_config=_AUTO_FP8, impls=("tokenmill", "transformers"), scale_name="_scale",
              family=Family(model_type="mistral", models="Mistral FP8 by AutoFP8",
                            shows="one scale a weight, called weight_scale", settings=_TWO_BLOCKS)),
)  # fmt: skip

WIDENED = (
    Family(model_type="gpt_oss", models="gpt-oss 20B", settings={"num_hidden_layers": 24, "num_local_experts": 32}),
    Family(model_type="gpt_oss", models="gpt-oss 120B"),
    Family(model_type="minimax_m2", models="MiniMax-M2"),
    Family(model_type="deepseek_v3", models="DeepSeek-V3, R1"),
)
"""Published sizes of quantized models: `settings` go on top of transformers' own configuration, and not of `TINY`."""

_NO_FUNCTION = "takes no attention function"

REFUSED = (
    Refusal(model_type="bloom", models="BLOOM (ALiBi)", reason=_NO_FUNCTION),
    Refusal(model_type="codegen", models="CodeGen", reason=_NO_FUNCTION, settings={"rotary_dim": 8}),
    Refusal(model_type="falcon", models="Falcon", reason=_NO_FUNCTION),
    Refusal(model_type="gptj", models="GPT-J", reason=_NO_FUNCTION, settings={"rotary_dim": 8}),
    Refusal(model_type="mpt", models="MPT (ALiBi)", reason=_NO_FUNCTION),
    Refusal(model_type="doge", models="Doge", reason="an attention mask of its own making"),
    Refusal(model_type="llama4_text", models="Llama 4", reason="'chunked_attention'",
            settings={**_LOCAL_EXPERTS, "head_dim": 16, "intermediate_size_mlp": 96}),
    Refusal(model_type="deepseek_v32", models="DeepSeek-V3.2", reason="a layer of type",
            settings={**_MLA, **_SHARED_EXPERTS}),
    Refusal(model_type="bamba", models="Bamba", reason="'linear_attention'"),
    Refusal(model_type="lfm2", models="LFM2", reason="'conv'", settings={"layer_types": ["conv", "full_attention"]}),
    Refusal(model_type="mamba", models="Mamba", reason="'linear_attention'"),
    Refusal(model_type="qwen3_next", models="Qwen3-Next", reason="'linear_attention'", settings=_EXPERTS),
    Refusal(model_type="rwkv", models="RWKV 4", reason="a state besides attention"),
)  # fmt: skip
