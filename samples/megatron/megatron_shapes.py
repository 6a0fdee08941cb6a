"""Sizes of the models, their parameters and Megatron-LM's count of floating-point operations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """A decoder with RMSNorm, rotary embeddings and grouped-query attention, as its authors published it."""

    layers: int
    hidden: int
    ffn: int
    """Width of the MLP, or of one expert."""
    heads: int
    kv_heads: int
    vocab: int
    seq: int
    """Tokens of a training sequence."""
    rotary_base: int = 10_000
    head_dim: int = 128
    experts: int = 0
    """0: a dense MLP."""
    top_k: int = 0
    qk_norm: bool = False
    gated: bool = True
    """SwiGLU; else GELU between two matrices."""

    @property
    def matrices(self) -> int:
        """Matrices of an MLP."""
        return 3 if self.gated else 2

    @property
    def parameters(self) -> int:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * q + 2 * kv) + (2 * self.head_dim if self.qk_norm else 0)
        mlp = self.matrices * self.hidden * self.ffn * max(self.experts, 1) + self.hidden * self.experts
        return self.layers * (attention + mlp + 2 * self.hidden) + 2 * self.vocab * self.hidden + self.hidden

    def flops(self, sequences: int) -> float:
        """Flops of one iteration, forward and backward, as Megatron-LM counts them.

        Half of the attention matrix (it is causal), no recomputation, no router.
        """
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * q + 2 * kv) + q * self.seq
        mlp = self.matrices * self.hidden * self.ffn * max(self.top_k, 1)
        per_token = self.layers * (attention + mlp) + self.hidden * self.vocab
        return 3 * 2 * sequences * self.seq * float(per_token)


SHAPES = {
    "toy": Shape(2, 256, 512, 4, 4, 1000, 2048, head_dim=64),
    "llama2-7b": Shape(32, 4096, 11008, 32, 32, 32000, 4096),
    "llama2-13b": Shape(40, 5120, 13824, 40, 40, 32000, 4096),
    "llama2-70b": Shape(80, 8192, 28672, 64, 8, 32000, 4096),
    "llama3-8b": Shape(32, 4096, 14336, 32, 8, 128256, 8192, 500_000),
    "llama3-70b": Shape(80, 8192, 28672, 64, 8, 128256, 8192, 500_000),
    "llama3-405b": Shape(126, 16384, 53248, 128, 8, 128256, 8192, 500_000),
    "mixtral-8x7b": Shape(32, 4096, 14336, 32, 8, 32000, 4096, 1_000_000, experts=8, top_k=2),
    "qwen3-30b-a3b": Shape(48, 2048, 768, 32, 4, 151936, 4096, 1_000_000, experts=128, top_k=8, qk_norm=True),
    # Of Megatron-LM's table of weak scaling, which has LayerNorm.
    "gpt-1.7b": Shape(24, 2048, 8192, 16, 16, 131072, 4096, gated=False),
    "gpt-7b": Shape(30, 4096, 16384, 32, 32, 131072, 4096, gated=False),
    "gpt-16b": Shape(32, 6144, 24576, 48, 48, 131072, 4096, gated=False),
    "gpt-32b": Shape(48, 7168, 28672, 56, 56, 131072, 4096, gated=False),
    "gpt-70b": Shape(84, 8192, 32768, 64, 64, 131072, 4096, gated=False),
    "gpt3-175b": Shape(96, 12288, 49152, 96, 96, 51200, 2048, gated=False),
}
