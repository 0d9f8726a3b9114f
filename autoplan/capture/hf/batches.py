"""Random inputs of each head; dimension 0 of every tensor is the sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor

from autoplan.errors import UsageError

__all__ = [
    "Batch",
    "MakeBatch",
    "causal",
    "image",
    "image_text",
    "image_text_inputs",
    "longest",
    "masked",
    "pairs",
    "seq2seq",
    "sequence_classes",
    "speech",
]

Batch = dict[str, Tensor]
# (configuration, samples, tokens a sample, random numbers, name for messages)
MakeBatch = Callable[[Any, int, int, Generator, str], Batch]

_IGNORED = -100
_IMAGE_TEXT = {"gemma3", "llava"}
# Their positions start behind the id of the padding token.
_OFFSET_POSITIONS = {
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "roberta-prelayernorm",
}
# Their scan is a Python loop, which a trace writes out step by step.
_LOOPS = {"falcon_mamba", "mamba"}
_MOST_STEPS = 128
_LIMITS = ("max_position_embeddings", "max_target_positions", "max_encoder_position_embeddings")


def longest(config: Any) -> int | None:
    """Most tokens of a sample, None if the configuration has no limit."""
    text = config.get_text_config()
    limits = [
        value
        for owner in ({id(text): text, id(config): config}).values()
        for key in _LIMITS
        if isinstance(value := getattr(owner, key, None), int) and value > 0
    ]
    if not limits:
        return None
    offset = text.pad_token_id + 1 if text.model_type in _OFFSET_POSITIONS else 0
    return min(limits) - offset


def causal(config: Any, size: int, seq_len: int, random: Generator, name: str) -> Batch:
    """Token ids, which are the labels too."""
    ids = _ids(config, size, seq_len, random, name)
    return {"input_ids": ids, "labels": ids.clone()}


def masked(config: Any, size: int, seq_len: int, random: Generator, name: str) -> Batch:
    """Token ids and a label for every one."""
    ids = _ids(config, size, seq_len, random, name)
    return {"input_ids": ids, "labels": _ids(config, size, seq_len, random, name)}


def seq2seq(config: Any, size: int, seq_len: int, random: Generator, name: str) -> Batch:
    """Token ids of the encoder and as many labels of the decoder."""
    if not hasattr(config, "decoder_start_token_id"):
        raise UsageError(
            f"{name}: the configuration has no decoder_start_token_id",
            hint="give it: --set decoder_start_token_id=0 (T5 starts with its padding token)",
        )
    return masked(config, size, seq_len, random, name)


def sequence_classes(config: Any, size: int, seq_len: int, random: Generator, name: str) -> Batch:
    """Token ids and a class of each sample."""
    ids = _ids(config, size, seq_len, random, name)
    return {"input_ids": ids, "labels": _classes(config, size, random)}


def image(config: Any, size: int, seq_len: int, random: Generator, name: str) -> Batch:
    """Pixels and the class of each image."""
    return {"pixel_values": _pixels(config, size, random), "labels": _classes(config, size, random)}


def speech(config: Any, size: int, seq_len: int, random: Generator, name: str) -> Batch:
    """Spectrograms of the only length that the encoder takes, and labels of the decoder."""
    # Two convolutions, of which one halves the length, lead to the encoder's positions.
    shape = (size, config.num_mel_bins, 2 * config.max_source_positions)
    features = torch.randn(shape, generator=random)
    return {"input_features": features, "labels": _ids(config, size, seq_len, random, name)}


def pairs(config: Any, size: int, seq_len: int, random: Generator, name: str) -> Batch:
    """Texts that end in the token whose features are compared, and their images."""
    ids = _ids(config, size, seq_len, random, name)
    end = config.text_config.eos_token_id
    if isinstance(end, int) and 0 <= end < config.text_config.vocab_size:
        ids[ids == end] = 0
        ids[:, -1] = end
    return {"input_ids": ids, "pixel_values": _pixels(config.vision_config, size, random)}


def image_text(config: Any, size: int, seq_len: int, random: Generator, name: str) -> Batch:
    """Texts that start with an image: as many placeholder tokens as it has features.

    The placeholders are no labels.
    """
    if config.model_type not in _IMAGE_TEXT:
        raise UsageError(
            f"{name}: where {config.model_type} wants its images among the tokens is not known",
            hint=f"known are {', '.join(sorted(_IMAGE_TEXT))}; wrap other models in a Python file "
            "whose batch() has a fixed layout: file.py:factory",
        )
    count = _image_tokens(config)
    if seq_len <= count + 1:
        raise UsageError(
            f"--seq-len {seq_len} has no room for the {count} tokens of an image of {name}",
            hint=f"use at least {count + 2}: they count as tokens of the sample",
        )
    ids = _ids(config, size, seq_len, random, name)
    placeholder = config.image_token_id
    ids[ids == placeholder] = 0
    ids[:, 1 : count + 1] = placeholder
    labels = ids.clone()
    labels[ids == placeholder] = _IGNORED
    pixels = _pixels(config.vision_config, size, random)
    return {"input_ids": ids, "pixel_values": pixels, "labels": labels}


def image_text_inputs(config: Any, ids: Tensor, pixels: Tensor) -> dict[str, Tensor]:
    """What the model takes beside ids and labels, for the layout of `image_text`."""
    if config.model_type == "gemma3":
        return {"pixel_values": pixels, "token_type_ids": (ids == config.image_token_id).long()}
    return {"pixel_values": pixels}


def _image_tokens(config: Any) -> int:
    per_image = getattr(config, "mm_tokens_per_image", None)
    if isinstance(per_image, int):
        return per_image
    vision = config.vision_config
    patches = int((vision.image_size // vision.patch_size) ** 2)
    whole = getattr(config, "vision_feature_select_strategy", "default") == "full"
    return patches + 1 if whole else patches


def _ids(config: Any, size: int, seq_len: int, random: Generator, name: str) -> Tensor:
    most = longest(config)
    if most is not None and seq_len > most:
        nested = config.get_text_config() is not config
        part = "text_config." if nested and hasattr(config, "text_config") else ""
        raise UsageError(
            f"--seq-len {seq_len} exceeds the {most} positions of {name}",
            hint=f"use a shorter one, or --set {part}max_position_embeddings=N",
        )
    if config.model_type in _LOOPS and seq_len > _MOST_STEPS:
        raise UsageError(
            f"{name}: the scan of {config.model_type} is a Python loop over tokens, and torch has "
            f"no operator for it: {seq_len} tokens would be {seq_len} times its operators",
            hint=f"use --seq-len {_MOST_STEPS} or less, or a model whose scan is made of products, "
            "such as mamba2",
        )
    vocabulary = config.get_text_config().vocab_size
    return torch.randint(0, vocabulary, (size, seq_len), generator=random)


def _pixels(config: Any, size: int, random: Generator) -> Tensor:
    side = getattr(config, "image_size", 224)
    height, width = side if isinstance(side, list | tuple) else (side, side)
    return torch.randn((size, config.num_channels, height, width), generator=random)


def _classes(config: Any, size: int, random: Generator) -> Tensor:
    return torch.randint(0, config.num_labels, (size,), generator=random)
