"""Facts of GPUs and models, and what follows from them: weight, KV and pool size.

Everything here is arithmetic on published numbers. What a step costs is never derived from it:
that is measured (`profile.py`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

GIB = 2**30
DTYPE_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
UTILISATION = 0.9
"""Share of device memory the engine may use: vLLM's `gpu_memory_utilization`."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One device: what its vendor states (dense FLOP/s) and what a driver reports (memory)."""

    name: str
    memory_bytes: int
    """Total as torch reports it: the vendor's figure less what the driver keeps."""
    bandwidth_bytes_per_s: float
    bf16_flops_per_s: float
    fp8_flops_per_s: float | None
    source: str


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A Llama-shaped decoder: RMSNorm, grouped-query attention, gated MLP, LM head."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_model_len: int
    tied: bool = False
    """The LM head is the embedding."""
    source: str = ""

    @property
    def parameters(self) -> int:
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        embeddings = (1 if self.tied else 2) * self.vocab * self.hidden
        return self.layers * layer + embeddings + self.hidden

    def weight_bytes(self, dtype: str = "bf16", tp: int = 1) -> int:
        """Bytes of weights on each of `tp` devices; fp8 leaves embeddings and LM head in bf16."""
        if dtype != "fp8":
            return self.parameters * DTYPE_BYTES[dtype] // tp
        outside = (1 if self.tied else 2) * self.vocab * self.hidden
        return (self.parameters + outside) // tp

    def kv_bytes_per_token(self, dtype: str = "bf16", tp: int = 1) -> int:
        """Bytes of keys and values of one token on each of `tp` devices.

        A KV head is not split: beyond `kv_heads` devices each keeps a copy.
        """
        heads = max(1, self.kv_heads // tp)
        return 2 * self.layers * heads * self.head_dim * DTYPE_BYTES[dtype]


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            name="h100-sxm",
            memory_bytes=int(79.1 * GIB),
            bandwidth_bytes_per_s=3.35e12,
            bf16_flops_per_s=989e12,
            fp8_flops_per_s=1979e12,
            source="NVIDIA H100 data sheet (SXM5, dense)",
        ),
        Gpu(
            name="h200-sxm",
            memory_bytes=int(139.8 * GIB),
            bandwidth_bytes_per_s=4.8e12,
            bf16_flops_per_s=989e12,
            fp8_flops_per_s=1979e12,
            source="NVIDIA H200 data sheet (SXM, dense)",
        ),
        Gpu(
            name="a100-sxm",
            memory_bytes=int(79.2 * GIB),
            bandwidth_bytes_per_s=2.039e12,
            bf16_flops_per_s=312e12,
            fp8_flops_per_s=None,
            source="NVIDIA A100 80GB data sheet (SXM4, dense)",
        ),
        Gpu(
            name="b200-sxm",
            memory_bytes=int(178.3 * GIB),
            bandwidth_bytes_per_s=8.0e12,
            bf16_flops_per_s=2250e12,
            fp8_flops_per_s=4500e12,
            source="NVIDIA DGX B200 data sheet (per GPU, dense)",
        ),
        Gpu(
            name="l40s",
            memory_bytes=int(44.4 * GIB),
            bandwidth_bytes_per_s=864e9,
            bf16_flops_per_s=362e12,
            fp8_flops_per_s=733e12,
            source="NVIDIA L40S data sheet (dense)",
        ),
        Gpu(
            name="rtx-4090",
            memory_bytes=25_250_627_584,
            bandwidth_bytes_per_s=1.008e12,
            bf16_flops_per_s=165.2e12,
            fp8_flops_per_s=330.3e12,
            source="NVIDIA Ada GPU architecture paper (dense, fp32 accumulate); memory as recorded "
            "by LLMServingSim's vLLM 0.19 run",
        ),
        Gpu(
            name="rtx-pro-6000",
            memory_bytes=int(94.97 * GIB),
            bandwidth_bytes_per_s=1.792e12,
            bf16_flops_per_s=503.8e12,
            fp8_flops_per_s=1007.6e12,
            source="NVIDIA RTX Blackwell PRO architecture paper (Workstation Edition, dense)",
        ),
    )
}

MODELS = {
    model.name: model
    for model in (
        ModelShape(
            name="tiny",
            layers=4,
            hidden=384,
            heads=6,
            kv_heads=3,
            head_dim=64,
            ffn=1024,
            vocab=4096,
            max_model_len=8192,
            tied=True,
            source="Batchlab's own CPU model",
        ),
        ModelShape(
            name="llama-3.1-8b",
            layers=32,
            hidden=4096,
            heads=32,
            kv_heads=8,
            head_dim=128,
            ffn=14336,
            vocab=128256,
            max_model_len=131072,
            source="meta-llama/Llama-3.1-8B config.json",
        ),
        ModelShape(
            name="llama-3.1-70b",
            layers=80,
            hidden=8192,
            heads=64,
            kv_heads=8,
            head_dim=128,
            ffn=28672,
            vocab=128256,
            max_model_len=131072,
            source="meta-llama/Llama-3.1-70B config.json",
        ),
        ModelShape(
            name="qwen3-32b",
            layers=64,
            hidden=5120,
            heads=64,
            kv_heads=8,
            head_dim=128,
            ffn=25600,
            vocab=151936,
            max_model_len=40960,
            source="Qwen/Qwen3-32B config.json",
        ),
    )
}


def find_gpu(name: str) -> Gpu:
    """Raises ValueError naming the nearest known GPU."""
    return _find(name, GPUS, "GPU")


def find_model(name: str) -> ModelShape:
    """Raises ValueError naming the nearest known model."""
    return _find(name, MODELS, "model")


def model_from(text: str) -> ModelShape:
    """A known model by name, or the shape in a Hugging Face `config.json`.

    Raises ValueError in one line.
    """
    if not text.endswith(".json"):
        return find_model(text)
    path = Path(text)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        heads = int(config["num_attention_heads"])
        return ModelShape(
            name=str(config.get("_name_or_path") or path.parent.name or config["model_type"]),
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads", heads)),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            ffn=int(config["intermediate_size"]),
            vocab=int(config["vocab_size"]),
            max_model_len=int(config["max_position_embeddings"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            source=str(path),
        )
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except KeyError as error:
        raise ValueError(f"{path}: field {error} is missing, expected a model's config") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a model's config.json: {error}") from None


def _find(name: str, known: dict[str, T], what: str) -> T:
    key = name.lower().replace("_", "-").rpartition("/")[2]
    if key in known:
        return known[key]
    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
    raise ValueError(f"unknown {what} {name!r}: {hint}")


def activation_bytes(
    model: ModelShape, tp: int = 1, batched_tokens: int = 8192, seats: int = 256
) -> int:
    """What an engine keeps free beside weights and KV, on each device.

    0.7 GiB of context and workspace; for `batched_tokens` tokens the gated MLP's three widths
    (split over `tp`) and six hidden vectors, two bytes each; for `seats` sequences two rows of
    fp32 logits.
    """
    per_token = 2 * (3 * model.ffn // tp + 6 * model.hidden)
    logits = 2 * 4 * model.vocab * seats
    return int(0.7 * GIB) + batched_tokens * per_token + logits


def pool_tokens(
    gpu: Gpu,
    model: ModelShape,
    *,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    tp: int = 1,
    utilisation: float = UTILISATION,
    batched_tokens: int = 8192,
) -> int:
    """Tokens of KV that fit:

    (utilisation · memory − weights / tp − activations) / KV bytes per token, per device.

    Against the one pool on record (vLLM 0.19, RTX 4090, Llama-3.1-8B bf16, 2,588 blocks of 16 =
    41,408 tokens, 2,048 batched tokens) this is within 2 %. Raises ValueError where the weights
    leave no room.
    """
    room = (
        int(utilisation * gpu.memory_bytes)
        - model.weight_bytes(dtype, tp)
        - activation_bytes(model, tp, batched_tokens)
    )
    if room <= 0:
        raise ValueError(
            f"{model.name} in {dtype} at tp {tp} leaves no KV pool on {gpu.name}: needs "
            f"{-room / GIB:.1f} GiB more per device at utilisation {utilisation}"
        )
    return room // model.kv_bytes_per_token(kv_dtype, tp)
