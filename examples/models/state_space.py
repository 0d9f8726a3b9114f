"""A selective state-space model in plain PyTorch: the scan as sums within and across chunks.

A state decays by ``a`` and takes up ``b x`` at each position; the output reads it with ``c``.
Within a chunk that is a product with a lower triangular matrix of decays; chunks pass on
their last state.

``autoplan solve state_space.py:model --cluster 8xh100 --global-batch 64 --seq-len 4096``
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def decays(log_a: Tensor) -> Tensor:
    """Lower triangular ``exp(sum of log_a over (j, i])`` for the last dimension."""
    length = log_a.shape[-1]
    total = log_a.cumsum(-1)
    difference = total[..., :, None] - total[..., None, :]
    keep = torch.ones(length, length, dtype=torch.bool, device=log_a.device).tril()
    return difference.masked_fill(~keep, float("-inf")).exp()


def scan(x: Tensor, log_a: Tensor, b: Tensor, c: Tensor, chunk: int) -> Tensor:
    """States read by ``c``.

    ``x`` is (batch, length, heads, width), ``log_a`` (batch, length, heads), ``b`` and ``c``
    (batch, length, heads, state).
    """
    size, length, heads, width = x.shape
    x, b, c = (t.reshape(size, length // chunk, chunk, heads, -1) for t in (x, b, c))
    log_a = log_a.reshape(size, length // chunk, chunk, heads).permute(0, 3, 1, 2)
    scores = torch.einsum("bgihn,bgjhn->bhgij", c, b) * decays(log_a)
    within = torch.einsum("bhgij,bgjhp->bgihp", scores, x)
    total = log_a.cumsum(-1)
    to_end = (total[..., -1:] - total).exp().permute(0, 2, 3, 1)
    states = torch.einsum("bgjhn,bgjhp->bghpn", b * to_end[..., None], x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    between = decays(F.pad(total[..., -1], (1, 0)))
    entering = torch.einsum("bhgk,bkhpn->bghpn", between, states)[:, :-1]
    from_start = total.exp().permute(0, 2, 3, 1)
    across = torch.einsum("bgihn,bghpn->bgihp", c * from_start[..., None], entering)
    return (within + across).reshape(size, length, heads, width)


class Mixer(nn.Module):
    """Projections into gate, value, step, b and c; a short convolution; the scan."""

    def __init__(self, width: int, heads: int, state: int, chunk: int) -> None:
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.value = nn.Linear(width, 2 * width, bias=False)
        self.b = nn.Linear(width, heads * state, bias=False)
        self.c = nn.Linear(width, heads * state, bias=False)
        self.step = nn.Linear(width, heads)
        self.conv = nn.Conv1d(2 * width, 2 * width, 4, groups=2 * width, padding=3)
        self.log_rate = nn.Parameter(torch.zeros(heads))
        self.skip = nn.Parameter(torch.ones(heads))
        self.out = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Sequence mixed along its length."""
        size, length, _ = x.shape
        split = (size, length, self.heads, -1)
        value = self.conv(self.value(x).transpose(1, 2))[..., :length].transpose(1, 2)
        value = F.silu(value).reshape(split)
        step = F.softplus(self.step(x))
        log_a = -step * self.log_rate.exp()
        b, c = self.b(x).view(split), self.c(x).view(split)
        y = scan(value * step[..., None], log_a, b, c, self.chunk)
        y = (y + value * self.skip[:, None]).reshape(size, length, -1)
        return self.out(y * F.silu(self.gate(x)))


class Layer(nn.Module):
    """Norm and mixer, residual."""

    def __init__(self, width: int, heads: int, state: int, chunk: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.mixer = Mixer(width, heads, state, chunk)

    def forward(self, x: Tensor) -> Tensor:
        """Residual stream after this layer."""
        return x + self.mixer(self.norm(x))


class StateSpace(nn.Module):
    """Language model of state-space layers."""

    def __init__(
        self, width: int, heads: int, depth: int, vocab_size: int, state: int, chunk: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.layers = nn.ModuleList(Layer(width, heads, state, chunk) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of the next token."""
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


def model(
    width: int = 2048,
    heads: int = 64,
    depth: int = 48,
    vocab_size: int = 50304,
    state: int = 64,
    chunk: int = 128,
) -> StateSpace:
    """About two billion parameters."""
    return StateSpace(width, heads, depth, vocab_size, state, chunk)


def batch(batch_size: int, seq_len: int, vocab_size: int = 50304) -> dict[str, Tensor]:
    """Random tokens; ``seq_len`` is a multiple of the chunk."""
    ids = torch.randint(0, vocab_size, (batch_size, seq_len + 1))
    return {"ids": ids[:, :-1].clone(), "labels": ids[:, 1:].clone()}
