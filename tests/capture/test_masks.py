"""The kind of a mask, against masks written element by element, and masks one element off."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from autoplan.capture.masks import mask_kind

Shown = Callable[[int, int], bool]

_KINDS: dict[str, Shown] = {
    "none": lambda q, k: True,
    "causal": lambda q, k: k <= q,
    "sliding(3)": lambda q, k: k <= q < k + 3,
    "local(2)": lambda q, k: abs(q - k) <= 2,
    "chunked(4)": lambda q, k: k <= q and q // 4 == k // 4,
    "block(4)": lambda q, k: q // 4 == k // 4,
    "prefix(3)": lambda q, k: k <= q or k < 3,
}
_SIZE = 10


def _mask(shown: Shown, queries: int = _SIZE, keys: int = _SIZE) -> Tensor:
    return torch.tensor([[shown(q, k) for k in range(keys)] for q in range(queries)])


@pytest.mark.parametrize("kind", _KINDS)
def test_each_kind_is_recognised(kind: str) -> None:
    mask = _mask(_KINDS[kind])
    assert mask_kind(mask) == kind
    assert mask_kind(mask.expand(3, 1, _SIZE, _SIZE)) == kind
    assert mask_kind(mask.repeat(3, 2, 1, 1)) == kind
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for low in (-torch.inf, torch.finfo(dtype).min):
            assert mask_kind(torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, low)) == kind


@pytest.mark.parametrize("kind", _KINDS)
def test_one_flipped_element_is_another_mask(kind: str) -> None:
    mask = _mask(_KINDS[kind])
    for index in range(mask.numel()):
        changed = mask.clone()
        changed.view(-1)[index] ^= True
        found = mask_kind(changed)
        assert found == "explicit" or torch.equal(_mask(_shown(found)), changed), index


def _shown(kind: str) -> Shown:
    """The definition of a kind, whatever its number."""
    name, _, number = kind.rstrip(")").partition("(")
    size = int(number or 0)
    return {
        "none": lambda q, k: True,
        "causal": lambda q, k: k <= q,
        "sliding": lambda q, k: k <= q < k + size,
        "local": lambda q, k: abs(q - k) <= size,
        "chunked": lambda q, k: k <= q and q // size == k // size,
        "block": lambda q, k: q // size == k // size,
        "prefix": lambda q, k: k <= q or k < size,
    }[name]


def test_random_masks_are_never_taken_for_another() -> None:
    draw = random.Random(0)
    for _ in range(300):
        queries, keys = draw.randint(1, 5), draw.randint(1, 5)
        mask = torch.tensor([[draw.random() < 0.7 for _ in range(keys)] for _ in range(queries)])
        found = mask_kind(mask)
        if found != "explicit":
            assert torch.equal(_mask(_shown(found), queries, keys), mask), found


@pytest.mark.parametrize("window", range(1, _SIZE + 3))
def test_windows_name_their_width(window: int) -> None:
    mask = _mask(lambda q, k: k <= q < k + window)
    assert mask_kind(mask) == ("causal" if window >= _SIZE else f"sliding({window})")


def test_masks_of_some_samples_or_heads_only_are_explicit() -> None:
    mask = _mask(_KINDS["causal"]).repeat(2, 3, 1, 1)
    mask[1, 2, 0, 5] = True
    assert mask_kind(mask) == "explicit"


def test_added_numbers_are_a_bias() -> None:
    slopes = torch.arange(1, 5).view(4, 1, 1) * torch.arange(_SIZE) / 10
    assert mask_kind(slopes.expand(4, _SIZE, _SIZE)) == "bias"
    causal = _mask(_KINDS["causal"])
    assert mask_kind(slopes[1].expand(_SIZE, _SIZE).masked_fill(~causal, -torch.inf)) == "bias"


def test_a_row_that_sees_nothing_is_no_kind() -> None:
    mask = _mask(_KINDS["causal"])
    mask[0, 0] = False
    assert mask_kind(mask) == "explicit"
    finite = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)
    assert mask_kind(finite) == "explicit"
