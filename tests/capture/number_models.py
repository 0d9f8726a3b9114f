"""Models whose layers differ in numbers: rates of dropout and scales."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH = 8


class SkipPath(nn.Module):
    """Stochastic depth as image models write it."""

    def __init__(self, rate, kind):
        super().__init__()
        self.drop_prob = rate
        self.kind = kind

    def forward(self, x):
        if self.drop_prob == 0.0:
            return x
        keep = 1 - self.drop_prob
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        if self.kind == "floor":
            return x.div(keep) * (keep + torch.rand(shape, dtype=x.dtype, device=x.device)).floor_()
        return x * x.new_empty(shape).bernoulli_(keep).div_(keep)


class Layer(nn.Module):
    def __init__(self, rate, scale, kind):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(rate)
        self.skip = SkipPath(rate, kind)
        self.scale = scale

    def forward(self, x):
        y = self.down(self.dropout(F.gelu(self.up(self.norm(x)))))
        return x + self.skip(y) * self.scale


class Rated(nn.Module):
    """``rates`` and ``scales``, one a layer; ``ends``: what else reads a layer."""

    def __init__(self, rates, scales, kind, ends):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(map(Layer, rates, scales, [kind] * len(rates)))
        self.ends = ends

    def forward(self, x):
        x = self.first(x)
        seen = [x]
        for layer in self.layers:
            seen.append(layer(seen[-1]))
        x = seen[self.ends] if isinstance(self.ends, int) else seen[-1]
        if self.ends == "first":
            x = x * self.layers[0].norm.weight
        if self.ends == "third":
            x = x * self.layers[2].norm.weight
        return x.square().mean()


def rated(depth=8, rate=0.3, scaled=True, kind="floor", ends=-1, first=0.0):
    rates = [first + (rate - first) * i / (depth - 1) for i in range(depth)]
    scales = [0.25 + i / 16 for i in range(depth)] if scaled else [0.5] * depth
    return Rated(rates, scales, kind, ends)


def frozen(ends=-2):
    model = rated(ends=ends)
    model.layers.requires_grad_(False)
    return model


def listed(rates, scales, kind="floor"):
    return Rated(rates, scales, kind, -1)


def batch(batch_size, seq_len):
    return {"x": torch.randn(batch_size, 4, WIDTH)}
