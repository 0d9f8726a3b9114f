"""Attention of ``transformers`` models: each form equals the model's own, or is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

from autoplan.capture.hf.attention import (
    ATTENTION,
    attention_implementation,
    register_attention,
)
from autoplan.errors import CaptureError

_B, _HEADS, _GROUPS, _S, _D = 2, 4, 2, 7, 8


class _Module(nn.Module):
    """What the models' own attention functions read of an attention module."""

    def __init__(self, *, is_causal: bool = True) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.num_key_value_groups = _HEADS // _GROUPS
        self.head_dim = _D
        self.sinks = nn.Parameter(torch.randn(_HEADS, dtype=torch.float64))
        self.layer_idx = 3


def _tensors(*, groups: int = _GROUPS, keys: int = _S) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = ((_HEADS, _S), (groups, keys), (groups, keys))
    query, key, value = (
        torch.randn(_B, heads, rows, _D, dtype=torch.float64, requires_grad=True)
        for heads, rows in shapes
    )
    return query, key, value


def _causal(window: int = _S) -> Tensor:
    row, column = torch.arange(_S)[:, None], torch.arange(_S)[None]
    return ((column <= row) & (column > row - window)).expand(_B, 1, _S, _S)


def _additive(mask: Tensor) -> Tensor:
    zeros = torch.zeros(mask.shape, dtype=torch.float64)
    return zeros.masked_fill(~mask, torch.finfo(torch.float64).min)


def _ours(module: nn.Module, *tensors: Tensor, mask: Tensor | None = None, **rest: Any) -> Tensor:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    register_attention()
    out, weights = ALL_ATTENTION_FUNCTIONS[ATTENTION](module, *tensors, mask, **rest)
    assert weights is None
    assert isinstance(out, Tensor)
    return out


def _compare(found: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    seed = torch.randn_like(expected)
    pairs = (torch.autograd.grad(y, leaves, seed) for y in (found, expected))
    for mine, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("window", "masked"), [(_S, True), (_S, False), (3, True)])
def test_sinks_equal_the_models_own(window: int, masked: bool) -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    module, tensors = _Module(), _tensors()
    mask = _causal(window)
    found = _ours(
        module, *tensors, mask=mask if masked else None, scaling=0.3, s_aux=module.sinks,
        sliding_window=window,
    )  # fmt: skip
    expected, _ = eager_attention_forward(module, *tensors, _additive(mask), scaling=0.3)
    _compare(found, expected, [*tensors, module.sinks])


def test_sinks_without_order_equal_the_models_own() -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    module, tensors = _Module(is_causal=False), _tensors(groups=_HEADS)
    module.num_key_value_groups = 1
    found = _ours(module, *tensors, scaling=0.3, s_aux=module.sinks)
    expected, _ = eager_attention_forward(module, *tensors, None, scaling=0.3)
    _compare(found, expected, [*tensors, module.sinks])


@pytest.mark.parametrize("masked", [True, False])
def test_softcap_equals_the_models_own(masked: bool) -> None:
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    module, tensors = _Module(), _tensors()
    mask = _causal(3) if masked else _causal()
    found = _ours(module, *tensors, mask=mask if masked else None, scaling=0.7, softcap=0.5)
    expected, _ = eager_attention_forward(
        module.eval(), *tensors, _additive(mask), scaling=0.7, softcap=0.5
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # theirs rounds to float32
    capped = (tensors[0] @ tensors[1].repeat_interleave(2, 1).transpose(2, 3) * 0.7 / 0.5).tanh()
    weights = (capped * 0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    exact = (weights @ tensors[2].repeat_interleave(2, 1)).transpose(1, 2)
    _compare(found, exact, list(tensors))


@pytest.mark.parametrize("kind", ["causal", "plain", "boolean", "additive"])
def test_position_bias_equals_the_models_own(kind: str) -> None:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    module, tensors = _Module(is_causal=kind == "causal"), _tensors(groups=_HEADS)
    module.num_key_value_groups = 1
    bias = torch.randn(1, _HEADS, _S, _S, dtype=torch.float64, requires_grad=True)
    mask = {"boolean": _causal(3), "additive": _additive(_causal(3))}.get(kind)
    found = _ours(module, *tensors, mask=mask, scaling=1.0, position_bias=bias)
    expected, _ = sdpa_attention_forward(module, *tensors, mask, scaling=1.0, position_bias=bias)
    _compare(found, expected, [*tensors, bias])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("keys", [_S, _S + 2])
def test_groups_and_cross_attention_equal_torch(masked: bool, keys: int) -> None:
    tensors = _tensors(keys=keys)
    mask = torch.rand(_B, 1, _S, keys) > 0.3 if masked else None
    found = _ours(_Module(is_causal=False), *tensors, mask=mask, scaling=0.3)
    expected = nn.functional.scaled_dot_product_attention(
        tensors[0], *(x.repeat_interleave(2, 1) for x in tensors[1:]), mask, scale=0.3
    ).transpose(1, 2)
    _compare(found, expected, list(tensors))


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ({"indices": torch.zeros(1)}, "indices"),
        ({"output_attentions": True}, "output_attentions"),
        ({"cu_seq_lens_q": torch.zeros(1)}, "cu_seq_lens_q"),
        ({"head_mask": torch.ones(_HEADS)}, "head_mask"),
        ({"sliding_window": 3}, "window of 3 tokens of 7"),
        ({"softcap": 1.0, "s_aux": torch.zeros(_HEADS)}, "both sinks and a softcap"),
    ],
)
def test_what_is_not_computed_is_refused(argument: dict[str, Any], text: str) -> None:
    with pytest.raises(CaptureError, match=text) as caught:
        _ours(_Module(), *_tensors(), **argument)
    assert "_Module of layer 3" in str(caught.value)
    assert caught.value.hint


def test_what_changes_nothing_is_accepted() -> None:
    tensors = _tensors()
    plain = _ours(_Module(), *tensors)
    other = _ours(
        _Module(), *tensors, sliding_window=_S, output_attentions=False, softcap=None,
        position_ids=torch.zeros(1), cu_seq_lens_q=None,
    )  # fmt: skip
    assert torch.equal(plain, other)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("llama.modeling_llama.LlamaForCausalLM", ATTENTION),
        ("gpt_oss.modeling_gpt_oss.GptOssForCausalLM", ATTENTION),
        ("gemma2.modeling_gemma2.Gemma2ForCausalLM", ATTENTION),
        ("bloom.modeling_bloom.BloomForCausalLM", "eager"),
        ("falcon.modeling_falcon.FalconForCausalLM", "sdpa"),
        ("deberta_v2.modeling_deberta_v2.DebertaV2ForMaskedLM", "eager"),
    ],
)
def test_models_that_write_attention_out_keep_it(model: str, expected: str) -> None:
    import importlib

    path, _, name = model.rpartition(".")
    module = importlib.import_module(f"transformers.models.{path}")
    assert attention_implementation(getattr(module, name)) == expected
