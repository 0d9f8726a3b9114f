"""A small GPT in plain PyTorch: tied token weights, fused qkv projection, learned positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["NanoGpt", "batch", "nanogpt"]


class Attention(nn.Module):
    """Causal self-attention with one fused projection for q, k and v."""

    def __init__(self, *, n_embd: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.n_head = n_head
        self.dropout = dropout
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attention of ``x`` (batch, sequence, channels) to its past."""
        size, length, channels = x.shape
        q, k, v = (
            part.view(size, length, self.n_head, channels // self.n_head).transpose(1, 2)
            for part in self.c_attn(x).split(channels, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        out: Tensor = self.c_proj(y.transpose(1, 2).reshape(size, length, channels))
        return out


class Mlp(nn.Module):
    """Two projections around a GELU."""

    def __init__(self, *, n_embd: int, dropout: float) -> None:
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * n_embd, n_embd, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Feed-forward result of ``x``."""
        out: Tensor = self.dropout(self.c_proj(self.gelu(self.c_fc(x))))
        return out


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, *, n_embd: int, n_head: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = Attention(n_embd=n_embd, n_head=n_head, dropout=dropout)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = Mlp(n_embd=n_embd, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Residual stream after this block."""
        x = x + self.attn(self.ln_1(x))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class NanoGpt(nn.Module):
    """Language model whose ``forward(ids, targets)`` is the mean token cross entropy."""

    def __init__(
        self,
        *,
        vocab_size: int,
        block_size: int,
        n_layer: int,
        n_head: int,
        n_embd: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.wpe = nn.Embedding(block_size, n_embd)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(
            Block(n_embd=n_embd, n_head=n_head, dropout=dropout) for _ in range(n_layer)
        )
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, mean=0.0, std=0.02 / scale)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of the next tokens."""
        if ids.shape[1] > self.wpe.num_embeddings:
            raise ValueError(f"{ids.shape[1]} tokens exceed block_size {self.wpe.num_embeddings}")
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.drop(self.wte(ids) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def nanogpt(
    *,
    vocab_size: int = 50304,
    block_size: int = 1024,
    n_layer: int = 12,
    n_head: int = 12,
    n_embd: int = 768,
    dropout: float = 0.0,
) -> NanoGpt:
    """GPT-2 sized model by default."""
    return NanoGpt(
        vocab_size=vocab_size,
        block_size=block_size,
        n_layer=n_layer,
        n_head=n_head,
        n_embd=n_embd,
        dropout=dropout,
    )


def batch(batch_size: int, seq_len: int, vocab_size: int = 50304) -> dict[str, Tensor]:
    """Random token ids and targets."""
    ids = torch.randint(0, vocab_size, (batch_size, seq_len + 1))
    return {"ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}
