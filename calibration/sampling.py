"""From logits to tokens, each sequence by its own settings and its own random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How one request draws its tokens. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    """Draw from the fewest tokens whose probabilities reach this."""
    seed: int = 0
    eos: int | None = None
    """The token that ends an output; None = run to the maximum."""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"sampling: temperature {self.temperature}, expected at least 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"sampling: top_p {self.top_p}, expected 0 < top_p <= 1")


class Draw(NamedTuple):
    """One token to sample: settings, and a uniform number in [0, 1) where they need one."""

    sampling: Sampling
    uniform: float = 0.0


def sample(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """One token a row of `logits`, int64 on its device. No row sees another.

    The uniform number picks the token by inverse CDF over the probabilities in falling order,
    so a sequence with its own generator draws the same in any company.
    """
    chosen = logits.argmax(dim=-1)
    drawn = [i for i, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if not drawn:
        return chosen
    settings = [(d.sampling.temperature, d.sampling.top_p, d.uniform) for d in draws]
    columns = torch.tensor([settings[i] for i in drawn], dtype=torch.float64, device=logits.device)
    temperature, top_p, uniform = columns.split(1, dim=1)
    rows = torch.tensor(drawn, device=logits.device)
    # float64: a rounding error that depends on the batch must not move a boundary of the CDF.
    odds, order = (logits[rows].double() / temperature).softmax(-1).sort(dim=-1, descending=True)
    below = odds.cumsum(dim=-1) - odds
    odds = odds.masked_fill(below >= top_p, 0.0)
    reached = odds.cumsum(dim=-1)
    pick = (reached <= uniform * reached[:, -1:]).sum(dim=-1, keepdim=True)
    kept = (odds > 0).sum(dim=-1, keepdim=True)
    chosen[rows] = order.gather(1, pick.minimum(kept - 1)).squeeze(1)
    return chosen
