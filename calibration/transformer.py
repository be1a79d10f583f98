"""A Llama-shaped decoder with random weights over a paged KV cache.

Real shapes and real work, no real language: RMSNorm, rotary positions, grouped-query attention
through block tables, SwiGLU, LM head. One `forward` runs one engine step: the tokens of many
sequences packed end to end, decodes and prefill chunks alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from calibration.attention import Batch, paged_attention, write_kv
from calibration.hardware import ModelShape

ROPE_BASE = 500_000.0
EPSILON = 1e-5


@dataclass(frozen=True)
class KvCache:
    """Keys and values of every layer: `[blocks, block_size, kv_heads, head_dim]` each."""

    keys: list[Tensor]
    values: list[Tensor]

    @classmethod
    def empty(
        cls, model: ModelShape, blocks: int, block_size: int, device: str, dtype: torch.dtype
    ) -> KvCache:
        """Zeroed storage; what a freed block held stays until it is written over."""
        form = (blocks, block_size, model.kv_heads, model.head_dim)

        def storage() -> list[Tensor]:
            return [torch.zeros(form, device=device, dtype=dtype) for _ in range(model.layers)]

        return cls(storage(), storage())

    @property
    def block_size(self) -> int:
        return self.keys[0].shape[1]

    @property
    def blocks(self) -> int:
        return self.keys[0].shape[0]

    @property
    def tokens(self) -> int:
        """Token slots."""
        return self.blocks * self.block_size

    def recut(self, block_size: int) -> KvCache:
        """The same storage in blocks of another size; slots that fill no block are left out."""
        blocks = self.tokens // block_size

        def cut(storage: Tensor) -> Tensor:
            slots = storage.flatten(0, 1)[: blocks * block_size]
            return slots.view(blocks, block_size, *slots.shape[1:])

        return KvCache([cut(each) for each in self.keys], [cut(each) for each in self.values])


@dataclass(frozen=True)
class Layer:
    """Weights of one decoder layer, `[inputs, outputs]`; those that share an input are fused.

    In this layout MKL's time rises steadily with the rows; the other way round three rows cost
    more than four.
    """

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Transformer:
    """Random weights of `model`, the same for the same seed, device and dtype."""

    def __init__(
        self,
        model: ModelShape,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        attention: str = "auto",
    ) -> None:
        self.model, self.device, self.dtype, self.attention = model, device, dtype, attention
        generator = torch.Generator(device=device).manual_seed(seed)

        def weights(inputs: int, outputs: int, gain: float = 1.0) -> Tensor:
            drawn = torch.randn(inputs, outputs, device=device, dtype=dtype, generator=generator)
            return drawn.mul_(gain * inputs**-0.5)

        def ones() -> Tensor:
            return torch.ones(model.hidden, device=device, dtype=dtype)

        heads, kv_heads, width = model.heads, model.kv_heads, model.head_dim
        # Each layer adds twice to the residual: scaled so that depth does not blow it up.
        residual = (2 * model.layers) ** -0.5
        self.embedding = weights(model.hidden, model.vocab).t().contiguous()
        self.layers = [
            Layer(
                attention_norm=ones(),
                qkv=weights(model.hidden, (heads + 2 * kv_heads) * width),
                out=weights(heads * width, model.hidden, residual),
                mlp_norm=ones(),
                gate_up=weights(model.hidden, 2 * model.ffn),
                down=weights(model.ffn, model.hidden, residual),
            )
            for _ in range(model.layers)
        ]
        self.norm = ones()
        head = self.embedding.t() if model.tied else weights(model.hidden, model.vocab)
        self.head = head.contiguous()
        half = torch.arange(0, width, 2, device=device, dtype=torch.float64) / width
        self.frequencies = ROPE_BASE**-half

    @torch.inference_mode()
    def forward(self, tokens: Tensor, batch: Batch, cache: KvCache, rows: Tensor) -> Tensor:
        """Logits `[len(rows), vocab]` after the packed tokens numbered `rows`.

        Writes the tokens' keys and values to `batch.slots` of `cache`, and nothing else.
        """
        model, width = self.model, self.model.head_dim
        split = [model.heads, model.kv_heads, model.kv_heads]
        rotation = self._rotation(batch.positions)
        hidden = self.embedding[tokens]
        for layer, keys, values in zip(self.layers, cache.keys, cache.values, strict=True):
            packed = rms_norm(hidden, layer.attention_norm) @ layer.qkv
            q, k, v = packed.view(len(tokens), -1, width).split(split, dim=1)
            q, k = rotate(q, rotation), rotate(k, rotation)
            write_kv(k, v, keys, values, batch.slots, self.attention)
            seen = paged_attention(q, keys, values, batch, width**-0.5, self.attention)
            hidden = hidden + seen.reshape(len(tokens), -1) @ layer.out
            gate, up = (rms_norm(hidden, layer.mlp_norm) @ layer.gate_up).chunk(2, dim=-1)
            hidden = hidden + (silu(gate) * up) @ layer.down
        logits: Tensor = rms_norm(hidden[rows], self.norm) @ self.head
        return logits

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        # Angles in float64: at position 100,000 a float32 angle is off by a hundredth of a turn.
        angles = (positions.to(torch.float64)[:, None] * self.frequencies)[:, None, :]
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Root-mean-square norm over the last dimension, in float32 at least."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * (wide.square().mean(-1, keepdim=True) + EPSILON).rsqrt()).to(x.dtype) * weight


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding, halves of each head as the pairs (the Llama layout)."""
    cos, sin = rotation
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
