"""Attention of ``transformers`` models as one operator, exactly, or refused.

The models hand their attention to a function by name. Ours computes softcap, sinks and
position biases as the models' own eager functions do, in operators that have rules, and
refuses what it does not know: an ignored argument would be another model.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoplan.errors import CaptureError

__all__ = [
    "ATTENTION",
    "attention_implementation",
    "attention_settings",
    "register_attention",
    "set_attention",
]

ATTENTION = "autoplan"
# What models pass along that doesn't change the result of attention.
_HARMLESS = {
    "cache_position", "deterministic", "labels", "layer_idx", "logits_to_keep",
    "num_items_in_batch", "output_hidden_states", "output_router_logits", "position_embeddings",
    "position_ids", "return_dict", "target_dtype", "use_cache",
}  # fmt: skip
_SETTING_HINTS = {
    "output_attentions": "--set output_attentions=false",
    "head_mask": "leave head masks out of the batch",
}


def register_attention() -> None:
    """Teach transformers an attention that stays one operator, without a mask if it can."""
    from transformers import masking_utils
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if ATTENTION in ALL_ATTENTION_FUNCTIONS:
        return

    plain = {"causal_mask_function", "bidirectional_mask_function"}

    def mask(*, mask_function: Any, attention_mask: Any = None, **rest: Any) -> Any:
        if attention_mask is None and getattr(mask_function, "__name__", "") in plain:
            return None
        # vmap can't be exported; masks that index by broadcast positions don't need it.
        rest["use_vmap"] = bool(rest.get("use_vmap")) and not _is_index_based(mask_function)
        # Whether a mask is needed is judged as without a trace: its sizes are fixed.
        with _patched(masking_utils, "is_torchdynamo_exporting", lambda: False):
            return masking_utils.sdpa_mask(
                mask_function=mask_function, attention_mask=attention_mask, **rest
            )

    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)
    masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, mask)


def _is_index_based(mask_function: Any) -> bool:
    """Whether a mask is made of functions of transformers' own, all of which are."""
    if getattr(mask_function, "__module__", "") != "transformers.masking_utils":
        return False
    cells = [cell.cell_contents for cell in mask_function.__closure__ or ()]
    parts = [part for cell in cells for part in (cell if isinstance(cell, tuple) else (cell,))]
    return all(_is_index_based(part) for part in parts if callable(part))


@contextmanager
def _patched(module: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, function)
    try:
        yield
    finally:
        setattr(module, name, before)


def attention_settings(auto: Any, config: Any) -> dict[str, str]:
    """Arguments with which an auto class builds the model of ``config`` for a trace."""
    register_attention()
    found = getattr(auto, "_model_mapping", {}).get(type(config), auto)
    model_class = found[0] if isinstance(found, list | tuple) else found
    return {"attn_implementation": attention_implementation(model_class)}


def attention_implementation(model_class: Any) -> str:
    """Implementation under which a model class computes its own attention exactly.

    Ours where the class hands attention over by name; otherwise what the class itself
    computes. A class that opts out of fused attention does so for something that its own
    function adds: sinks and softcap are known here, anything else stays with that function.
    """
    module = sys.modules.get(getattr(model_class, "__module__", ""))
    try:
        code = inspect.getsource(module) if module else ""
    except (OSError, TypeError):
        return ATTENTION
    by_name = "ALL_ATTENTION_FUNCTIONS" in code
    own = re.search(r"^class \w*Attention\w*\(nn\.Module\):", code, re.MULTILINE)
    fused = bool(getattr(model_class, "_supports_sdpa", False))
    if own and not by_name:
        return "sdpa" if fused else "eager"
    if own and not fused and "s_aux=" not in code and "softcap=" not in code:
        return "eager"
    return ATTENTION


def set_attention(module: nn.Module) -> nn.Module:
    """The module, each model inside it with its own `attention_implementation`."""
    for part in _models(module):
        config = part.config
        if config._attn_implementation == ATTENTION:
            config._attn_implementation_internal = attention_implementation(_origin(part))
    return module


def _models(module: nn.Module) -> Iterator[Any]:
    from transformers import PreTrainedModel

    for part in module.modules():
        if isinstance(part, PreTrainedModel):
            yield part


def _origin(part: Any) -> type:
    """Class of a model as transformers wrote it, under the class that gives the loss."""
    cls = type(part)
    return next((c for c in cls.__mro__ if c.__module__.startswith("transformers.models")), cls)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    *,
    position_bias: Tensor | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    _refuse_unknown(module, kwargs)
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    queries, keys = query.shape[2], key.shape[2]
    is_causal = is_causal and attention_mask is None and queries > 1
    if isinstance(sliding_window, int) and attention_mask is None and keys > sliding_window:
        raise CaptureError(
            f"{_name(module)} attends to a window of {sliding_window} tokens of {keys}, but the "
            "model makes no mask for it",
            hint=f"use --seq-len {sliding_window} or less, or --set sliding_window=null",
        )
    if s_aux is not None:
        sinks = s_aux.reshape(1, -1, 1, 1)
    if softcap is not None and sinks is not None:
        raise CaptureError(
            f"{_name(module)} has both sinks and a softcap",
            hint="no known model has both; switch one of them off with --set",
        )
    if position_bias is not None:
        attention_mask = _with_bias(position_bias, attention_mask, is_causal, keys)
        is_causal = False
    if softcap is not None:
        out = _softcapped(query, key, value, attention_mask, dropout, scaling, is_causal, softcap)
    elif sinks is not None:
        out = _with_sinks(query, key, value, attention_mask, dropout, scaling, is_causal, sinks)
    else:
        out = _fused(query, key, value, attention_mask, dropout, scaling, is_causal)
    return out.transpose(1, 2).contiguous(), None


def _name(module: Any) -> str:
    layer = getattr(module, "layer_idx", None)
    return type(module).__name__ + ("" if layer is None else f" of layer {layer}")


def _refuse_unknown(module: Any, kwargs: dict[str, Any]) -> None:
    for key, item in kwargs.items():
        if item is None or item is False or key in _HARMLESS:
            continue
        raise CaptureError(
            f"{_name(module)} passes {key} to attention, which is not computed here",
            hint=_SETTING_HINTS.get(key, "switch it off with --set, or wrap the model in a file "
                                    "whose forward calls scaled_dot_product_attention"),
        )  # fmt: skip


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool,
) -> Tensor:
    grouped = query.shape[1] != key.shape[1]
    if grouped and mask is not None:
        # Kernels that take a mask take no groups: torch would write out all scores.
        key, value, grouped = _repeated(key, query), _repeated(value, query), False
    settings = {"enable_gqa": True} if grouped else {}
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=is_causal,
        scale=scaling,
        **settings,
    )


def _repeated(x: Tensor, query: Tensor) -> Tensor:
    """Key or value heads, each as often as it has query heads."""
    batch, heads, rows, width = x.shape
    count = query.shape[1] // heads
    if count == 1:
        return x
    return x[:, :, None].expand(batch, heads, count, rows, width).reshape(
        batch, heads * count, rows, width
    )  # fmt: skip


def _causal(queries: int, keys: int, like: Tensor) -> Tensor:
    rows = torch.arange(queries, device=like.device).view(1, 1, queries, 1)
    return torch.arange(keys, device=like.device).view(1, 1, 1, keys) <= rows


def _with_bias(bias: Tensor, mask: Tensor | None, is_causal: bool, keys: int) -> Tensor:
    """Additive mask of a position bias and a mask; hidden positions as transformers fills them."""
    if mask is None and is_causal:
        mask = _causal(bias.shape[-2], keys, bias)
    if mask is None:
        return bias
    if mask.dtype == torch.bool:
        return torch.where(mask, bias, torch.finfo(bias.dtype).min)
    return bias + mask


def _softcapped(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool,
    softcap: float,
) -> Tensor:
    """Attention whose scores pass ``softcap * tanh(scores / softcap)``: no kernel has it."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    key, value = _repeated(key, query), _repeated(value, query)
    scores = torch.matmul(query, key.transpose(2, 3)) * scale
    scores = torch.tanh(scores / softcap) * softcap
    if mask is None and is_causal:
        mask = _causal(query.shape[2], key.shape[2], query)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    precision = torch.float64 if query.dtype == torch.float64 else torch.float32
    weights = torch.softmax(scores, dim=-1, dtype=precision).to(query.dtype)
    return torch.matmul(F.dropout(weights, dropout), value)


def _with_sinks(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool,
    sinks: Tensor,
) -> Tensor:
    """Attention with one more score in each row's softmax, which carries no value.

    The score becomes a key: all zero but for a channel of its own, in which the query holds
    ``sink / scale``. So the fused kernel does it all, and the sink gets its gradient as part
    of the query. Under a causal flag a first row keeps the diagonal where it was.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    batch, heads, queries, width = query.shape
    value_width = value.shape[-1]
    sinks = sinks.to(query.dtype).expand(batch, heads, queries, 1) / scale
    query = torch.cat([query, sinks], -1)
    channel = F.pad(key.new_ones(batch, key.shape[1], 1, 1), (width, 0))
    key = torch.cat([channel, F.pad(key, (0, 1))], 2)
    value = F.pad(value, (0, max(1 + width - value_width, 0), 1, 0))
    if is_causal:
        query = F.pad(query, (0, 0, 1, 0))
    if mask is not None:
        mask = F.pad(mask, (1, 0), value=mask.dtype == torch.bool)
    out = _fused(query, key, value, mask, dropout, scale, is_causal)
    return out[:, :, 1 if is_causal else 0 :, :value_width]
