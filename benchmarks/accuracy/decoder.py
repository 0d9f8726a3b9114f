"""A decoder whose operators are the kernels that published training systems run.

It stands for Megatron-LM, MPT, NeMo and the like in prices; nobody trains it. Where those systems
fuse a chain of pointwise operators into one kernel, one operator with the same bytes stands for
it: a scaled, masked softmax is a softmax, a rotary embedding is a product with a number, and so
is a gather of rows that are all kept.
Megatron's fused softmax needs a number of matrices that 4 divides; where it doesn't, the scores
are cast to float32, scaled, masked and cast back one after another. Its loss over split
vocabularies takes maximum, difference, exponential, sum and quotient in kernels of their own,
which move as many bytes as a log-softmax and one product more. Query, key and value lie together
by head in one projection, as in Megatron-LM. Of routed experts a rank has its own, and as many rows
as it would send away; the router, whose product is thousands of times smaller, is left out.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Decoder", "batch", "decoder"]


class Attention(nn.Module):
    """Causal self-attention with one projection, by scores in memory or by a flash kernel."""

    def __init__(
        self, *, hidden: int, heads: int, kv_heads: int, head: int, bias: bool, flash: bool,
        rotary: bool, dropout: float, fused_softmax: bool, unpads: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.fused_softmax, self.unpads = fused_softmax, unpads
        self.groups, self.each, self.head = kv_heads, heads // kv_heads, head
        self.flash, self.rotary = flash, rotary
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * head, bias=bias)
        self.out = nn.Linear(heads * head, hidden, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Attention of ``x`` (batch, sequence, channels) to its past."""
        size, length, _ = x.shape
        lanes = self.qkv(x).view(size, length, self.groups, self.each + 2, self.head)
        q, k, v = lanes.split([self.each, 1, 1], dim=3)
        q, k, v = (part.reshape(size, length, -1, self.head).transpose(1, 2) for part in (q, k, v))
        if self.rotary:
            q, k = q * 0.5, k * 0.5
        if self.unpads:
            q, k, v = q * 0.5, k * 0.5, v * 0.5
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.each > 1)
        else:
            y = self.dropout(self._softmax(q @ k.transpose(2, 3))) @ v
        if self.unpads:
            y = y * 0.5
        out: Tensor = self.out(y.transpose(1, 2).reshape(size, length, -1))
        return out

    def _softmax(self, scores: Tensor) -> Tensor:
        if self.fused_softmax:
            return scores.softmax(-1)
        length = scores.shape[-1]
        hidden = torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)
        wide = (scores.float() * 0.5).masked_fill(hidden, -1e4)
        return wide.softmax(-1).to(scores.dtype)


class Mlp(nn.Module):
    """Two projections around an activation, gated or not."""

    def __init__(self, *, hidden: int, ffn: int, bias: bool, gated: bool, squared: bool) -> None:
        super().__init__()
        self.ffn, self.gated, self.squared = ffn, gated, squared
        self.up = nn.Linear(hidden, ffn * (2 if gated else 1), bias=bias)
        self.down = nn.Linear(ffn, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Feed-forward result of ``x``."""
        wide = self.up(x)
        if self.gated:
            gate, value = wide.view(*x.shape[:-1], self.ffn, 2).unbind(-1)
            act = F.silu(gate) * value
        else:
            act = F.relu(wide) if self.squared else F.gelu(wide, approximate="tanh")
        out: Tensor = self.down(act)
        return out


class Experts(nn.Module):
    """The experts of one rank, as one batched product each way; its rows spread evenly."""

    def __init__(self, *, hidden: int, ffn: int, gated: bool, experts: int, top_k: int) -> None:
        super().__init__()
        self.ffn, self.gated, self.experts, self.top_k = ffn, gated, experts, top_k
        self.up = nn.Parameter(torch.empty(experts, hidden, ffn * (2 if gated else 1)))
        self.down = nn.Parameter(torch.empty(experts, ffn, hidden))

    def forward(self, x: Tensor) -> Tensor:
        """Sum over the ``top_k`` experts of each token of ``x`` (batch, sequence, channels)."""
        rows = torch.cat([x] * self.top_k, dim=0)
        wide = torch.bmm(rows.view(self.experts, -1, x.shape[-1]), self.up)
        if self.gated:
            gate, value = wide.view(*wide.shape[:-1], self.ffn, 2).unbind(-1)
            act = F.silu(gate) * value
        else:
            act = F.gelu(wide, approximate="tanh")
        summed = torch.bmm(act, self.down).view(rows.shape)
        parts = torch.split(summed, x.shape[0], dim=0)
        out = parts[0]
        for part in parts[1:]:
            out = out + part
        return out


class Layer(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(
        self, *, hidden: int, heads: int, kv_heads: int, head: int, ffn: int, bias: bool,
        flash: bool, rotary: bool, gated: bool, squared: bool, rms: bool, dropout: float,
        fused_softmax: bool, unpads: bool, experts: int, top_k: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.first = _norm(hidden, rms=rms, bias=bias)
        self.attention = Attention(
            hidden=hidden, heads=heads, kv_heads=kv_heads, head=head, bias=bias, flash=flash,
            rotary=rotary, dropout=dropout, fused_softmax=fused_softmax, unpads=unpads,
        )  # fmt: skip
        self.second = _norm(hidden, rms=rms, bias=bias)
        self.mlp: nn.Module
        if experts:
            self.mlp = Experts(hidden=hidden, ffn=ffn, gated=gated, experts=experts, top_k=top_k)
        else:
            self.mlp = Mlp(hidden=hidden, ffn=ffn, bias=bias, gated=gated, squared=squared)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` after attention and feed-forward."""
        x = x + self.dropout(self.attention(self.first(x)))
        result: Tensor = x + self.dropout(self.mlp(self.second(x)))
        return result


class Decoder(nn.Module):
    """Token (and position) embedding, layers, norm, projection to the vocabulary, loss."""

    def __init__(
        self, *, vocab: int, hidden: int, layers: int, heads: int, kv_heads: int, head: int,
        ffn: int, positions: int, tied: bool, bias: bool, flash: bool, rotary: bool, gated: bool,
        squared: bool, rms: bool, dropout: float, embedding_norm: bool,
        fused_softmax: bool, eager_loss: bool, unpads: bool, experts: int, top_k: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eager_loss = eager_loss
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Parameter(torch.empty(positions, hidden)) if positions else None
        self.embedding_norm = _norm(hidden, rms=rms, bias=bias) if embedding_norm else None
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            Layer(
                hidden=hidden, heads=heads, kv_heads=kv_heads, head=head, ffn=ffn, bias=bias,
                flash=flash, rotary=rotary, gated=gated, squared=squared, rms=rms,
                dropout=dropout, fused_softmax=fused_softmax, unpads=unpads, experts=experts,
                top_k=top_k,
            )
            for _ in range(layers)
        )  # fmt: skip
        self.norm = _norm(hidden, rms=rms, bias=bias)
        self.head = nn.Linear(hidden, vocab, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of a batch of tokens and the labels they have to predict."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions[: tokens.shape[1]]
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x)).float()
        if self.eager_loss:
            logits = logits * 0.5
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


def _norm(hidden: int, *, rms: bool, bias: bool) -> nn.Module:
    return nn.RMSNorm(hidden) if rms else nn.LayerNorm(hidden, bias=bias)


def decoder(
    *, vocab: int, hidden: int, layers: int, heads: int, ffn: int, kv_heads: int = 0,
    head: int = 0, positions: int = 0, tied: bool = True, bias: bool = True, flash: bool = False,
    rotary: bool = False, gated: bool = False, squared: bool = False, rms: bool = False,
    dropout: float = 0.1, embedding_norm: bool = False, fused_softmax: bool = True,
    eager_loss: bool = False, unpads: bool = False, experts: int = 0, top_k: int = 1,
) -> Decoder:  # fmt: skip
    """Decoder of those sizes; the other arguments say which kernels it runs."""
    return Decoder(
        vocab=vocab, hidden=hidden, layers=layers, heads=heads, kv_heads=kv_heads or heads,
        head=head or hidden // heads, ffn=ffn, positions=positions, tied=tied, bias=bias,
        flash=flash, rotary=rotary, gated=gated, squared=squared, rms=rms, dropout=dropout,
        embedding_norm=embedding_norm, fused_softmax=fused_softmax, eager_loss=eager_loss,
        unpads=unpads, experts=experts, top_k=top_k,
    )  # fmt: skip


def batch(batch_size: int, seq_len: int, vocab: int) -> dict[str, Tensor]:
    """Random tokens and labels."""
    return {name: torch.randint(vocab, (batch_size, seq_len)) for name in ("tokens", "labels")}
