"""Narrow settings for verification: the same architecture at a size that runs anywhere.

Widths become small multiples of the tensor-parallel degree; what makes the architecture its
kind stays: grouped heads, routed experts, alternating layers, stages, parts of a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autoplan.capture.hf.config import canonical, store
from autoplan.ir.fields import Json

__all__ = ["reduced_config"]

_HEAD = 16
_TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "decoder_start_token_id": 1}
_PLACEHOLDERS = (
    "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
    "boi_token_index", "eoi_token_index",
)  # fmt: skip
_LEAST_VOCABULARY = 128


def reduced_config(
    config: Mapping[str, Json], loaded: Any, *, layers: int, tp: int
) -> dict[str, Json] | None:
    """``config`` narrow and ``layers`` deep; None for an architecture without a recipe.

    ``loaded`` is its configuration object, which knows the defaults.
    """
    parts = [part for part in loaded.sub_configs if getattr(loaded, part, None) is not None]
    small = _settings(loaded, layers, tp)
    if small is None and not parts:
        return None
    result: dict[str, Json] = dict(config)
    for key, value in {**(small or {}), **_tokens(loaded)}.items():
        store(result, loaded, key, value)
    for part in parts:
        inner = getattr(loaded, part)
        own = config.get(part)
        values: Mapping[str, Json] = own if isinstance(own, dict) else {}
        narrow = reduced_config(values, inner, layers=layers, tp=tp)
        if narrow is None:
            return None
        result[part] = narrow
    _fit_parts(result, loaded, tp)
    return result


def _settings(config: Any, layers: int, tp: int) -> dict[str, Json] | None:
    match config.model_type:
        case "resnet" | "convnext" | "convnextv2" | "swin":
            return _stages(config, layers, tp)
        case "mamba" | "mamba2":
            return _state_space(config, layers, tp)
    if hasattr(config, "hidden_size") and _has(config, "num_attention_heads"):
        return _transformer(config, layers, tp)
    return None


def _transformer(config: Any, layers: int, tp: int) -> dict[str, Json]:
    heads = 4 * tp
    width = heads * _HEAD
    values: dict[str, Json] = {
        "num_hidden_layers": layers, "num_decoder_layers": layers, "encoder_layers": layers,
        "decoder_layers": layers, "num_attention_heads": heads, "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "head_dim": None if _has(config, "kv_lora_rank") else _HEAD, "hidden_size": width,
        "intermediate_size": 2 * width, "ffn_dim": 2 * width, "d_ff": 2 * width,
        "encoder_ffn_dim": 2 * width, "decoder_ffn_dim": 2 * width,
        "moe_intermediate_size": 2 * width, "projection_dim": width, "num_mel_bins": 16,
        "max_source_positions": 32, "num_labels": 16 * tp if _has(config, "patch_size") else None,
        "vocab_size": _vocabulary(config, tp), "sliding_window": 8,
    }  # fmt: skip
    small: dict[str, Json] = {
        key: value for key, value in values.items() if value and _has(config, key)
    }
    if _has(config, "word_embed_proj_dim") and config.word_embed_proj_dim == config.hidden_size:
        small["word_embed_proj_dim"] = width
    if _has(config, "n_inner"):
        small["n_inner"] = 2 * width
    small |= _attention(config, heads, tp) | _experts(config) | _pattern(config, layers)
    if _has(config, "image_size") and isinstance(config.patch_size, int):
        small["image_size"] = 2 * config.patch_size
    return small


def _attention(config: Any, heads: int, tp: int) -> dict[str, Json]:
    small: dict[str, Json] = {}
    grouped = getattr(config, "num_key_value_heads", None)
    if grouped is not None:
        groups = {config.num_attention_heads: heads, 1: 1}
        small["num_key_value_heads"] = groups.get(grouped, 2 * tp)
    if _has(config, "kv_lora_rank"):
        # Latent attention: heads have a part with and one without positions.
        small |= {
            "kv_lora_rank": 32 * tp, "qk_rope_head_dim": 8, "qk_nope_head_dim": _HEAD,
            "v_head_dim": _HEAD,
        }  # fmt: skip
        if _has(config, "q_lora_rank"):
            small["q_lora_rank"] = 32 * tp
    rope = getattr(config, "rope_parameters", None) or {}
    if isinstance(rope.get("mrope_section"), list):
        small["rope_scaling"] = {**rope, "mrope_section": [2, 3, 3]}
    return small


def _experts(config: Any) -> dict[str, Json]:
    """Eight experts, of which at most half are chosen; two groups where experts have groups."""
    small: dict[str, Json] = {}
    for key in ("num_local_experts", "n_routed_experts", "num_experts"):
        count = getattr(config, key, None)
        if isinstance(count, int) and count > 0:
            experts = min(count, 8)
            small[canonical(config, key)] = experts
            chosen = getattr(config, "num_experts_per_tok", None)
            if isinstance(chosen, int):
                small["num_experts_per_tok"] = min(chosen, max(1, experts // 2))
    if _has(config, "n_group") and config.n_group > 1:
        small |= {"n_group": 2, "topk_group": 1}
    return small


def _pattern(config: Any, layers: int) -> dict[str, Json]:
    """Layers of every kind, in as few as there are."""
    small: dict[str, Json] = {}
    for key in ("layer_types", "mlp_layer_types"):
        kinds = getattr(config, key, None)
        if isinstance(kinds, list) and kinds:
            order = list(dict.fromkeys(kinds))
            small[key] = [order[index % len(order)] for index in range(layers)]
    if _has(config, "first_k_dense_replace"):
        small["first_k_dense_replace"] = 1
    return small


def _stages(config: Any, layers: int, tp: int) -> dict[str, Json]:
    count = len(config.depths)
    least: list[Json] = [min(depth, layers) for depth in config.depths]
    small: dict[str, Json] = {"num_labels": 16 * tp, "depths": least}
    match config.model_type:
        case "swin":
            # Blocks come in pairs, plain and shifted; windows fill the last stage.
            # With one head no operator would change the order in memory.
            window, heads = 2, [max(2, tp) << stage for stage in range(count)]
            small["depths"] = [min(depth, max(2, layers // 2 * 2)) for depth in config.depths]
            small |= {
                "num_heads": list(heads),
                "embed_dim": _HEAD * heads[0],
                "window_size": window,
            }
            small["image_size"] = config.patch_size * window * (1 << (count - 1))
        case "resnet":
            small |= {
                "hidden_sizes": [32 * tp << stage for stage in range(count)],
                "embedding_size": 16 * tp, "image_size": 64,
            }  # fmt: skip
        case _:
            small |= {
                "hidden_sizes": [16 * tp << stage for stage in range(count)],
                "image_size": 2 * config.patch_size << (count - 1),
            }  # fmt: skip
    return small


def _state_space(config: Any, layers: int, tp: int) -> dict[str, Json]:
    width = 4 * tp * _HEAD
    small: dict[str, Json] = {
        "num_hidden_layers": layers, "hidden_size": width, "state_size": 8,
        "vocab_size": _vocabulary(config, tp), "time_step_rank": 4 * tp,
    }  # fmt: skip
    if config.model_type == "mamba2":
        inner = int(config.expand * width)
        groups = 1 if config.n_groups == 1 else 2 * tp
        small |= {
            "head_dim": _HEAD, "num_heads": inner // _HEAD, "n_groups": groups, "chunk_size": 8,
        }  # fmt: skip
    return small


def _vocabulary(config: Any, tp: int) -> int:
    """A small vocabulary, odd where the model's is, so that its shards are padded too."""
    size = getattr(config, "vocab_size", None)
    return _LEAST_VOCABULARY * tp + (size % 2 if isinstance(size, int) else 0)


def _tokens(config: Any) -> dict[str, Json]:
    """Special tokens that the small vocabulary holds."""
    small: dict[str, Json] = {}
    for key, value in _TOKENS.items():
        now = getattr(config, key, None)
        if isinstance(now, int) and now >= _LEAST_VOCABULARY:
            small[key] = value
    for index, key in enumerate(_PLACEHOLDERS):
        if isinstance(getattr(config, key, None), int):
            small[key] = _LEAST_VOCABULARY - 1 - index
    return small


def _fit_parts(result: dict[str, Json], config: Any, tp: int) -> None:
    """Sizes that a whole shares with its parts."""
    width = 4 * tp * _HEAD
    if _has(config, "mm_tokens_per_image"):
        # Four patches each way, of which two by two are averaged to one token.
        result["mm_tokens_per_image"] = 4
        vision = result["vision_config"]
        assert isinstance(vision, dict)
        vision["image_size"] = 4 * config.vision_config.patch_size
    if _has(config, "image_seq_length"):
        result["image_seq_length"] = 4
    if config.model_type in {"clip", "siglip"}:
        result["projection_dim"] = width


def _has(config: Any, key: str) -> bool:
    return getattr(config, key, None) is not None
