"""A user's file: experts by hand, in a loop that selects tokens by value, and their adapters."""

import torch
import torch.nn.functional as F
from torch import nn

import autoplan


class Stacked(nn.Module):
    """Experts with a gate, their weights stacked; the router is inside."""

    def __init__(self, width: int, inner: int, count: int, top_k: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.gate = nn.Parameter(torch.randn(count, inner, width) * 0.2)
        self.up = nn.Parameter(torch.randn(count, inner, width) * 0.2)
        self.down = nn.Parameter(torch.randn(count, width, inner) * 0.2)
        self.top_k = top_k

    def route(self, x):
        weights, index = self.router(x).softmax(dim=-1).topk(self.top_k, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True), index

    def forward(self, x):
        tokens = x.flatten(0, -2)
        weights, index = self.route(tokens)
        out = torch.zeros_like(tokens)
        for expert in range(len(self.up)):
            rows, choice = (index == expert).nonzero(as_tuple=True)
            if len(rows) == 0:
                continue
            y = F.gelu(F.linear(tokens[rows], self.gate[expert]))
            y = F.linear(y * F.linear(tokens[rows], self.up[expert]), self.down[expert])
            out = out.index_add(0, rows, y * weights[rows, choice, None])
        return out.view_as(x)


class Separate(nn.Module):
    """Experts that are modules of their own, without a gate and with biases."""

    def __init__(self, width: int, inner: int, count: int, top_k: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))
            for _ in range(count)
        )
        self.top_k = top_k

    def forward(self, x):
        logits, index = self.router(x).topk(self.top_k, dim=-1)
        weights = logits.softmax(dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            *where, choice = (index == number).nonzero(as_tuple=True)
            if len(choice):
                share = weights[(*where, choice)].unsqueeze(-1)
                out = out.index_put(where, expert(x[tuple(where)]) * share, accumulate=True)
        return out


@autoplan.register_experts(Stacked)
def _stacked(module, x):
    weights, index = module.route(x)
    return autoplan.experts(
        x, index, weights, module.up, module.down, gate=module.gate, activation="gelu"
    )


@autoplan.register_experts(Separate)
def _separate(module, x):
    logits, index = module.router(x).topk(module.top_k, dim=-1)

    def stacked(layer, name):
        return torch.stack([getattr(expert[layer], name) for expert in module.experts])

    return autoplan.experts(
        x,
        index,
        logits.softmax(dim=-1),
        stacked(0, "weight"),
        stacked(2, "weight"),
        up_bias=stacked(0, "bias"),
        down_bias=stacked(2, "bias"),
        activation="relu",
    )


class Model(nn.Module):
    def __init__(self, kind: type[nn.Module], width: int, layers: int, words: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), kind(width, 2 * width, 4, 2)) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids, targets):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def stacked(width: int = 32, layers: int = 2, words: int = 48) -> nn.Module:
    return Model(Stacked, width, layers, words)


def separate(width: int = 32, layers: int = 2, words: int = 48) -> nn.Module:
    return Model(Separate, width, layers, words)


def batch(batch_size: int, seq_len: int, words: int = 48):
    ids = torch.randint(0, words, (batch_size, seq_len + 1))
    return {"ids": ids[:, :-1].contiguous(), "targets": ids[:, 1:].contiguous()}
