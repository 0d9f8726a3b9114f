"""Heads: which model class, which batch, and which loss it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from autoplan.capture.hf import batches
from autoplan.errors import UsageError
from autoplan.ir.fields import Json

__all__ = ["TASKS", "Task", "as_loss_module", "task_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A head of ``transformers``: its class ``auto``, its forward and its batches.

    ``mapping`` names the table of model classes with this head, ``endings`` what the names
    of others like them end in. ``loss_type`` is the loss that transformers is told to use;
    None leaves the loss to the model.
    """

    title: str
    auto: str
    mapping: str
    endings: tuple[str, ...]
    loss_type: str | None
    forward: Callable[[Any], Callable[..., Tensor]]
    batch: batches.MakeBatch
    has_sequences: bool = True


def task_of(config: Mapping[str, Json], hf_config: Any, spec: str) -> str:
    """Name of the task in `TASKS`; UsageError for a head whose loss is not known."""
    from transformers.models.auto import modeling_auto

    architectures = config.get("architectures")
    named = [str(item) for item in architectures] if isinstance(architectures, list) else []
    custom = config.get("auto_map")
    for name, task in TASKS.items():
        known = _classes(getattr(modeling_auto, task.mapping).get(hf_config.model_type))
        if any(item in known for item in named) or (known and not named):
            return name
        if isinstance(custom, dict) and task.auto in custom:
            return name
    for name, task in TASKS.items():
        if any(item.endswith(task.endings) for item in named):
            return name
    raise UsageError(
        f"{spec}: no head with a known loss ({', '.join(named) or hf_config.model_type})",
        hint=f"known heads: {', '.join(task.title for task in TASKS.values())}; wrap other models "
        "in a Python file: file.py:factory",
    )


def _classes(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def as_loss_module(module: Any, task: Task) -> nn.Module:
    """The module itself, with a forward that returns the loss: parameter names don't change."""
    base = type(module)
    module.__class__ = type(base.__name__, (base,), {"forward": task.forward(base)})
    if task.loss_type is not None:
        module.loss_type = task.loss_type
    built: nn.Module = module
    return built


# The forwards name their inputs, since a batch is bound to them by name.


def _text(base: Any) -> Callable[..., Tensor]:
    def forward(self: Any, input_ids: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = base.forward(self, input_ids=input_ids, labels=labels).loss
        return loss

    return forward


def _image(base: Any) -> Callable[..., Tensor]:
    def forward(self: Any, pixel_values: Tensor, labels: Tensor) -> Tensor:
        pixels = _as_weights(self, pixel_values)
        loss: Tensor = base.forward(self, pixel_values=pixels, labels=labels).loss
        return loss

    return forward


def _speech(base: Any) -> Callable[..., Tensor]:
    def forward(self: Any, input_features: Tensor, labels: Tensor) -> Tensor:
        features = _as_weights(self, input_features)
        loss: Tensor = base.forward(self, input_features=features, labels=labels).loss
        return loss

    return forward


def _pairs(base: Any) -> Callable[..., Tensor]:
    def forward(self: Any, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        pixels = _as_weights(self, pixel_values)
        out = base.forward(self, input_ids=input_ids, pixel_values=pixels, return_loss=True)
        loss: Tensor = out.loss
        return loss

    return forward


def _image_text(base: Any) -> Callable[..., Tensor]:
    def forward(self: Any, input_ids: Tensor, pixel_values: Tensor, labels: Tensor) -> Tensor:
        pixels = _as_weights(self, pixel_values)
        inputs = batches.image_text_inputs(self.config, input_ids, pixels)
        loss: Tensor = base.forward(self, input_ids=input_ids, labels=labels, **inputs).loss
        return loss

    return forward


def _as_weights(module: nn.Module, values: Tensor) -> Tensor:
    return values.to(next(module.parameters()).dtype)


# In the order in which a configuration without architectures is looked up: BART is found in the
# table of masked LMs too, and Gemma 3 with images in that of causal ones.
TASKS: dict[str, Task] = {
    "image_text_to_text": Task(
        title="image-text-to-text",
        auto="AutoModelForImageTextToText",
        mapping="MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
        endings=(),
        loss_type="ForCausalLM",
        forward=_image_text,
        batch=batches.image_text,
    ),
    "seq2seq_lm": Task(
        title="seq2seq LM",
        auto="AutoModelForSeq2SeqLM",
        mapping="MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
        endings=("ForSeq2SeqLM",),
        loss_type=None,
        forward=_text,
        batch=batches.seq2seq,
    ),
    "speech_seq2seq": Task(
        title="speech seq2seq",
        auto="AutoModelForSpeechSeq2Seq",
        mapping="MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
        endings=(),
        loss_type=None,
        forward=_speech,
        batch=batches.speech,
    ),
    "contrastive": Task(
        title="contrastive image-text",
        auto="AutoModelForZeroShotImageClassification",
        mapping="MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        endings=(),
        loss_type=None,
        forward=_pairs,
        batch=batches.pairs,
    ),
    "masked_lm": Task(
        title="masked LM",
        auto="AutoModelForMaskedLM",
        mapping="MODEL_FOR_MASKED_LM_MAPPING_NAMES",
        endings=("ForMaskedLM",),
        loss_type="ForMaskedLM",
        forward=_text,
        batch=batches.masked,
    ),
    "causal_lm": Task(
        title="causal LM",
        auto="AutoModelForCausalLM",
        mapping="MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
        endings=("ForCausalLM", "LMHeadModel"),
        loss_type="ForCausalLM",
        forward=_text,
        batch=batches.causal,
    ),
    "image_classification": Task(
        title="image classification",
        auto="AutoModelForImageClassification",
        mapping="MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
        endings=("ForImageClassification",),
        loss_type="ForImageClassification",
        forward=_image,
        batch=batches.image,
        has_sequences=False,
    ),
    "sequence_classification": Task(
        title="sequence classification",
        auto="AutoModelForSequenceClassification",
        mapping="MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
        endings=("ForSequenceClassification",),
        loss_type="ForSequenceClassification",
        forward=_text,
        batch=batches.sequence_classes,
    ),
}
