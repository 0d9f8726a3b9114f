"""Graph convolutions over a batch of graphs, with the neighbours summed in one of four ways.

``kind`` is ``scatter`` (edge list, scatter_add), ``sparse`` (edge list, sparse matrix product),
``gather`` (padded neighbour lists) or ``dense`` (adjacency matrices).
A sparse tensor can't be planned for; ``gather`` and ``dense`` say the same without one.

``autoplan solve gcn.py:model --set kind=gather --cluster 8xh100 --global-batch 64``
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES = 128
CLASSES = 40


def scatter_sum(x: Tensor, edges: Tensor) -> Tensor:
    """Sum over incoming edges; ``x`` (batch, nodes, width), ``edges`` (batch, edges, 2)."""
    width = x.shape[2]
    messages = x.gather(1, edges[:, :, :1].expand(-1, -1, width))
    return torch.zeros_like(x).scatter_add(1, edges[:, :, 1:].expand(-1, -1, width), messages)


def sparse_sum(x: Tensor, edges: Tensor) -> Tensor:
    """The same as one product with the block-diagonal adjacency matrix of the batch."""
    size, nodes, width = x.shape
    offset = torch.arange(size, device=x.device)[:, None] * nodes
    index = torch.stack([(edges[..., 1] + offset).flatten(), (edges[..., 0] + offset).flatten()])
    ones = torch.ones(index.shape[1], device=x.device, dtype=x.dtype)
    adjacency = torch.sparse_coo_tensor(index, ones, (size * nodes, size * nodes))
    return torch.sparse.mm(adjacency, x.reshape(-1, width)).view_as(x)


def gather_sum(x: Tensor, neighbours: Tensor) -> Tensor:
    """Sum over neighbour lists (batch, nodes, degree)."""
    size, nodes, degree = neighbours.shape
    index = neighbours.reshape(size, nodes * degree, 1).expand(-1, -1, x.shape[2])
    return x.gather(1, index).view(size, nodes, degree, -1).sum(2)


SUMS = {"scatter": scatter_sum, "sparse": sparse_sum, "gather": gather_sum}


class Gcn(nn.Module):
    """Layers of neighbour sum, projection and ReLU; a class for each node."""

    def __init__(self, kind: str, width: int, depth: int) -> None:
        super().__init__()
        self.sum = torch.bmm if kind == "dense" else SUMS[kind]
        self.swap = kind == "dense"
        self.first = nn.Linear(FEATURES, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor, links: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy over all nodes."""
        x = self.first(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = norm(x)
            y = self.sum(links.to(y.dtype), y) if self.swap else self.sum(y, links)
            x = x + F.relu(layer(y))
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def model(kind: str = "scatter", width: int = 1024, depth: int = 8) -> Gcn:
    """A deep, wide GCN."""
    return Gcn(kind, width, depth)


def batch(
    batch_size: int, seq_len: int, kind: str = "scatter", nodes: int = 1024, degree: int = 16
) -> dict[str, Tensor]:
    """Random graphs with ``degree`` neighbours of each node on average."""
    shapes = {"gather": (nodes, degree), "dense": (nodes, nodes)}
    if kind == "dense":
        links = (torch.rand(batch_size, nodes, nodes) < degree / nodes).float()
    else:
        links = torch.randint(0, nodes, (batch_size, *shapes.get(kind, (nodes * degree, 2))))
    return {
        "x": torch.randn(batch_size, nodes, FEATURES),
        "links": links,
        "labels": torch.randint(0, CLASSES, (batch_size, nodes)),
    }
