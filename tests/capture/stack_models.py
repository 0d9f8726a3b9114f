"""Models made of stacks, for captures at reduced depth and for blocks without module lists."""

import torch
from torch import nn

WIDTH = 8


class Layer(nn.Module):
    def __init__(self, *, gated=False, position=0):
        super().__init__()
        self.layer_idx = position
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, 1) if gated else None

    def forward(self, x):
        y = self.down(torch.relu(self.up(self.norm(x))))
        return x + (y if self.gate is None else y * self.gate(x).sigmoid())


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH)
        self.cross = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, memory):
        return x + torch.tanh(self.own(x)) * self.cross(memory)


class First(nn.Module):
    """Layers of which the first makes what the others add."""

    def __init__(self, count):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH)) if count == 0 else None
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, bias):
        bias = x.mean(0) * self.bias if bias is None else bias
        return torch.tanh(self.linear(x) + bias), bias


class Stacks(nn.Module):
    """``pattern``: one letter a layer, ``g`` gated; ``walk``: how forward goes over them."""

    def __init__(self, pattern, walk):
        super().__init__()
        self.inside = nn.Linear(WIDTH, WIDTH)
        layers = [Layer(gated=kind == "g", position=i) for i, kind in enumerate(pattern)]
        self.layers = nn.ModuleList(layers)
        self.num_layers = len(pattern)
        self.scales = [2.0 if kind == "b" else 1.0 for kind in pattern]
        if walk == "norms":
            self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in pattern)
        self.walk = walk

    def forward(self, x):
        x = self.inside(x)
        for index in range(self.num_layers):
            x = self.layers[index](x)
            match self.walk:
                case "norms":
                    x = self.norms[index](x)
                case "scales":
                    x = x * self.scales[index]
                case "count":
                    x = x / len(self.layers)
                case "one":
                    x = x.abs() if self.layers[index].layer_idx == 3 else x
                case "place":
                    x = x.abs() if index == 4 else x
        return x.square().mean()


class EncoderDecoder(nn.Module):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.encoder = nn.ModuleList(Layer() for _ in range(encoder))
        self.decoder = nn.ModuleList(Decoder() for _ in range(decoder))

    def forward(self, x):
        memory = self.first(x).tanh()
        for layer in self.encoder:
            memory = layer(memory)
        y = self.first(x * 2)
        for layer in self.decoder:
            y = layer(y, memory)
        return y.square().mean()


class FirstDiffers(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList(First(index) for index in range(depth))

    def forward(self, x):
        bias = None
        for layer in self.layers:
            x, bias = layer(x, bias)
        return x.square().mean()


class Stages(nn.Module):
    """Stages of different width, each a list of layers in turn plain and gated."""

    def __init__(self, depths):
        super().__init__()
        self.stages = nn.ModuleList()
        for depth in depths:
            stage = nn.Module()
            stage.blocks = nn.ModuleList(Layer(gated=bool(i % 2)) for i in range(depth))
            stage.out = nn.Linear(WIDTH, WIDTH)
            self.stages.append(stage)

    def forward(self, x):
        for stage in self.stages:
            for layer in stage.blocks:
                x = layer(x)
            x = stage.out(x).relu()
        return x.square().mean()


class Attributes(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.count = count
        for index in range(1, count + 1):
            setattr(self, f"layer{index}", Layer())

    def forward(self, x):
        x = self.first(x).tanh()
        for index in range(1, self.count + 1):
            x = getattr(self, f"layer{index}")(x)
        return x.square().mean()


class Loop(nn.Module):
    """Parameters in lists, used in a loop; ``kinds`` functions take turns."""

    def __init__(self, count, kinds):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.kinds = kinds
        self.a = nn.ParameterList(torch.randn(WIDTH, WIDTH) / 4 for _ in range(count))
        self.b = nn.ParameterList(torch.randn(WIDTH, WIDTH) / 4 for _ in range(count))

    def forward(self, x):
        x = self.first(x).tanh()
        for a, b in zip(self.a, self.b, strict=True):
            x = x + torch.tanh(x @ a)
            x = x + torch.relu(x @ b) if self.kinds == 2 else x + torch.tanh(x @ b)
        return x.square().mean()


class UNet(nn.Module):
    """Two-dimensional, with ``units`` residual units a level, each handing on a skip."""

    def __init__(self, units):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(units))
        self.shrink = nn.Conv2d(4, 8, 2, stride=2)
        self.low = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(units))
        self.middle = nn.Conv2d(8, 8, 3, padding=1)
        self.low_up = nn.ModuleList(nn.Conv2d(16, 8, 3, padding=1) for _ in range(units))
        self.grow = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.up = nn.ModuleList(nn.Conv2d(8, 4, 3, padding=1) for _ in range(units))

    def forward(self, x):
        x = self.first(x)
        skips = []
        for unit in self.down:
            x = unit(x).relu()
            skips.append(x)
        x = self.shrink(x)
        for unit in self.low:
            x = unit(x).relu()
            skips.append(x)
        x = self.middle(x).relu()
        for unit in self.low_up:
            x = unit(torch.cat([x, skips.pop()], 1)).relu()
        x = self.grow(x)
        for unit in self.up:
            x = unit(torch.cat([x, skips.pop()], 1)).relu()
        return x.square().mean()


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(WIDTH, WIDTH)
        self.right = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, y):
        return x + torch.relu(self.left(y)), y + torch.tanh(self.right(x))


class Routed(nn.Module):
    """Equal layers that the loop of forward gives other tensors of the same shape.

    ``what`` they get by their place: one of two ``masks`` or ``buffers``, both of two streams
    in a ``swap``, the result of an ``early`` layer, or that of the ``first``.
    """

    def __init__(self, what, depth, at):
        super().__init__()
        self.inside = nn.Linear(WIDTH, WIDTH)
        made = Pair if what == "swap" else First
        self.layers = nn.ModuleList(made() if what == "swap" else made(1) for _ in range(depth))
        self.register_buffer("near", torch.linspace(0, 1, WIDTH))
        self.register_buffer("far", torch.linspace(0, 9, WIDTH))
        self.what, self.at = what, at

    def forward(self, x):
        x = y = self.inside(x)
        near, far = (self.near, self.far) if self.what == "buffers" else (x.tanh(), x.cos())
        for index, layer in enumerate(self.layers):
            if self.what == "swap":
                x, y = layer(y, x) if index == self.at else layer(x, y)
                continue
            if self.what in ("masks", "buffers"):
                other = far if index % self.at == self.at - 1 else near
            else:
                other = near
            before = x
            x, _ = layer(x, other)
            if self.what == "first" and index == 0:
                near = x
            if self.what == "early" and index == self.at:
                near = before
        return (2 * x - y).square().mean()


class Supervised(nn.Module):
    """A loss after every layer, by one head: its sum and the hidden state cross the blocks."""

    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        total = 0
        for layer in self.layers:
            x = layer(x)
            total = total + self.head(x).square().mean()
        return total


def supervised(depth=8):
    return Supervised(depth)


class Hooked(nn.Module):
    """Equal layers, one with a hook of its own."""

    def __init__(self, depth, at):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.layers[at].register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def hooked(depth=8, at=3):
    return Hooked(depth, at)


class BySize(nn.Module):
    """Work that is not affine in the number of samples."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        count = x.shape[0]
        if self.kind == "branch":
            return (self.linear(x) * (2 if count >= 4 else 1)).square().mean()
        if self.kind == "half":
            return self.linear(x)[: count // 2 + 1].square().mean()
        return self.linear(x).square().sum() / count**2


def by_size(kind="branch"):
    return BySize(kind)


def routed(what="masks", depth=24, at=6):
    return Routed(what, depth, at)


def stacks(pattern, walk="plain"):
    return Stacks(pattern, walk)


def encoder_decoder(encoder=7, decoder=6):
    return EncoderDecoder(encoder, decoder)


def first_differs(depth=8):
    return FirstDiffers(depth)


def stages():
    return Stages((2, 12, 7))


def attributes(count=6):
    return Attributes(count)


def loop(count=5, kinds=1):
    return Loop(count, kinds)


def unet(units=3):
    return UNet(units)


def batch(batch_size, seq_len):
    return {"x": torch.randn(batch_size, 1, 8, 8) if seq_len == 64 else torch.randn(batch_size, 8)}
