"""Collectives of a process group, each ready to run again and again on one payload."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

__all__ = ["COLLECTIVES", "Make"]

Make = Callable[[int, int, int, dist.ProcessGroup, torch.device], Callable[[], object]]


def _all_reduce(
    numel: int, ranks: int, first: int, group: dist.ProcessGroup, place: torch.device
) -> Callable[[], object]:
    x = torch.zeros(numel, device=place)
    return lambda: dist.all_reduce(x, group=group)


def _all_gather(
    numel: int, ranks: int, first: int, group: dist.ProcessGroup, place: torch.device
) -> Callable[[], object]:
    whole, part = torch.zeros(numel, device=place), torch.zeros(numel // ranks, device=place)
    return lambda: dist.all_gather_into_tensor(whole, part, group=group)


def _reduce_scatter(
    numel: int, ranks: int, first: int, group: dist.ProcessGroup, place: torch.device
) -> Callable[[], object]:
    whole, part = torch.zeros(numel, device=place), torch.zeros(numel // ranks, device=place)
    return lambda: dist.reduce_scatter_tensor(part, whole, group=group)


def _all_to_all(
    numel: int, ranks: int, first: int, group: dist.ProcessGroup, place: torch.device
) -> Callable[[], object]:
    share = numel // ranks // ranks * ranks
    sent, received = torch.zeros(share, device=place), torch.zeros(share, device=place)
    return lambda: dist.all_to_all_single(received, sent, group=group)


def _broadcast(
    numel: int, ranks: int, first: int, group: dist.ProcessGroup, place: torch.device
) -> Callable[[], object]:
    x = torch.zeros(numel, device=place)
    return lambda: dist.broadcast(x, src=first, group=group)


def _p2p(
    numel: int, ranks: int, first: int, group: dist.ProcessGroup, place: torch.device
) -> Callable[[], object]:
    x = torch.zeros(numel, device=place)
    mine = dist.get_rank()

    def there_and_back() -> None:
        if mine == first:
            dist.send(x, dst=first + 1, group=group)
            dist.recv(x, src=first + 1, group=group)
        else:
            dist.recv(x, src=first, group=group)
            dist.send(x, dst=first, group=group)

    return there_and_back


COLLECTIVES: dict[str, Make] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "p2p": _p2p,
}
