"""Names and sizes of a decoder layer's weights. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from engine.models.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Weights that are multiplied together: their outputs lie side by side."""

    parts: tuple[tuple[str, int], ...]
    """Names, and the number of outputs of each."""
    depth: int
    """Number of inputs."""
    has_bias: bool = False

    @property
    def width(self) -> int:
        """The number of outputs of all parts."""
        return sum(width for _, width in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """The weights of a decoder layer."""

    qkv: Joined
    output: Joined
    gate_up: Joined
    down: Joined

    @classmethod
    def of(cls, config: ModelConfig, prefix: str) -> LayerParts:
        """Return those of the layer whose names start with `prefix`."""
        hidden, ffn, queries = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
        keys, attention, mlp = config.num_kv_heads * config.head_dim, f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = ((f"{attention}.q_proj", queries), (f"{attention}.k_proj", keys), (f"{attention}.v_proj", keys))
        gate_up, has_mlp_bias = ((f"{mlp}.gate_proj", ffn), (f"{mlp}.up_proj", ffn)), config.has_mlp_bias
        return cls(
            qkv=Joined(parts=qkv, depth=hidden, has_bias=config.has_qkv_bias),
            output=Joined(parts=((f"{attention}.o_proj", hidden),), depth=queries, has_bias=config.has_output_bias),
            gate_up=Joined(parts=gate_up, depth=hidden, has_bias=has_mlp_bias),
            down=Joined(parts=((f"{mlp}.down_proj", hidden),), depth=ffn, has_bias=has_mlp_bias),
        )

    @property
    def all(self) -> tuple[Joined, Joined, Joined, Joined]:
        """All of them."""
        return self.qkv, self.output, self.gate_up, self.down
