"""Translation with ``torch.nn.Transformer``: encoder, decoder, cross-attention.

``autoplan solve transformer.py:model --seq-len 512``
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Translator(nn.Module):
    """Token and position embeddings around ``nn.Transformer``, and a tied output layer."""

    def __init__(self, width: int, heads: int, depth: int, vocab_size: int, longest: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(longest, width)
        self.transformer = nn.Transformer(
            width, heads, depth, depth, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.tokens.weight

    def _embed(self, ids: Tensor) -> Tensor:
        place = torch.arange(ids.shape[1], device=ids.device)
        return self.tokens(ids) + self.positions(place)

    def forward(self, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of the next target token."""
        length = target.shape[1]
        ones = torch.ones(length, length, dtype=torch.bool, device=target.device)
        out = self.transformer(
            self._embed(source), self._embed(target), tgt_mask=ones.triu(1), tgt_is_causal=True
        )
        return F.cross_entropy(self.head(out).flatten(0, 1), labels.flatten())


def model(
    width: int = 1024,
    heads: int = 16,
    depth: int = 6,
    vocab_size: int = 32768,
    longest: int = 1024,
) -> Translator:
    """The "big" size of the first transformers."""
    return Translator(width, heads, depth, vocab_size, longest)


def batch(batch_size: int, seq_len: int, vocab_size: int = 32768) -> dict[str, Tensor]:
    """Random sentence pairs."""
    shape = (batch_size, seq_len)
    names = ("source", "target", "labels")
    return {name: torch.randint(0, vocab_size, shape) for name in names}
