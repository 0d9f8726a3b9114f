"""Models named by a Hugging Face configuration, built by ``transformers``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoplan.capture.build import BuiltModule, build_on_meta, to_dtype
from autoplan.capture.source import Form, ModelSource, near_matches, torch_dtype
from autoplan.errors import InputError, UsageError
from autoplan.ir.plan import Json

__all__ = ["HuggingFaceSource", "huggingface_source", "read_config"]

_TASKS = {
    "masked_lm": ("AutoModelForMaskedLM", "ForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    "causal_lm": ("AutoModelForCausalLM", "ForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    "image_classification": (
        "AutoModelForImageClassification",
        "ForImageClassification",
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    ),
}
_ATTENTION = "autoplan"


@dataclass(frozen=True, slots=True, kw_only=True)
class HuggingFaceSource(ModelSource):
    """A model that ``transformers`` builds from ``config``, with the head of ``task``."""

    name: str
    spec: str
    form: Form
    overrides: Mapping[str, Json]
    config: Mapping[str, Json]
    task: str
    trust_remote_code: bool = False
    directory: str = ""
    file_digest: str = ""
    _config: Any = field(repr=False, compare=False)

    def build(
        self, *, dtype: str | torch.dtype = "float32", device: str | torch.device = "cpu"
    ) -> nn.Module:
        """Module in training mode whose ``forward(**batch)`` is the scalar loss."""
        module = self._make({})
        module.train()
        to_dtype(module, torch_dtype(dtype))
        return module.to(device)

    def build_for_trace(self, *, dtype: str | torch.dtype) -> BuiltModule:
        """The same module on the meta device, with attention as one operator."""
        _register_attention()
        settings: dict[str, Any] = {"attn_implementation": _ATTENTION}
        if _has_experts(self._config):
            # The eager loop over experts depends on data.
            settings["experts_implementation"] = "grouped_mm"
        return build_on_meta(lambda: self._make(settings), dtype=torch_dtype(dtype))

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Context without the search for packed sequences.

        It looks at position ids by value. The batch has none, so each sample is one sequence.
        """
        from transformers import masking_utils

        search = masking_utils.find_packed_sequence_indices
        masking_utils.find_packed_sequence_indices = lambda position_ids: None
        try:
            yield
        finally:
            masking_utils.find_packed_sequence_indices = search

    def _make(self, settings: dict[str, Any]) -> nn.Module:
        transformers = _transformers()
        auto = getattr(transformers, _TASKS[self.task][0])
        # A copy: building writes the attention implementation into the configuration.
        config = type(self._config).from_dict(self._config.to_dict())
        if settings.get("experts_implementation"):
            config._experts_implementation = settings.pop("experts_implementation")
        if self.trust_remote_code:
            settings = {**settings, "trust_remote_code": True}
        try:
            module = auto.from_config(config, **settings)
        except (ValueError, TypeError, KeyError, ZeroDivisionError, RuntimeError) as error:
            text = " ".join(str(error).split())
            raise InputError(
                f"{self.spec}: transformers can't build this configuration: {text}",
                hint="check the configuration and the values given with --set",
            ) from error
        return _as_loss_module(module, self.task)

    def batch(
        self, batch_size: int, seq_len: int, *, seed: int = 0, device: str | torch.device = "cpu"
    ) -> dict[str, Tensor]:
        """Random inputs: token ids and labels, or pixels and classes."""
        random = torch.Generator().manual_seed(seed)
        config = self._config
        if self.task == "image_classification":
            size = getattr(config, "image_size", 224)
            height, width = size if isinstance(size, list | tuple) else (size, size)
            shape = (batch_size, config.num_channels, height, width)
            labels = torch.randint(0, config.num_labels, (batch_size,), generator=random)
            inputs = {"pixel_values": torch.randn(shape, generator=random), "labels": labels}
        else:
            shape2 = (batch_size, seq_len)
            text = config.get_text_config()
            vocabulary = text.vocab_size
            longest = getattr(text, "max_position_embeddings", None)
            if longest is not None and seq_len > longest:
                raise UsageError(
                    f"--seq-len {seq_len} exceeds the {longest} positions of {self.name}",
                    hint="use a shorter one, or --set max_position_embeddings=N",
                )
            ids = torch.randint(0, vocabulary, shape2, generator=random)
            labels = torch.randint(0, vocabulary, shape2, generator=random)
            if self.task == "causal_lm":
                labels = ids.clone()
            inputs = {"input_ids": ids, "labels": labels}
        return {key: value.to(device) for key, value in inputs.items()}

    def reduced(self, *, layers: int, tp: int) -> HuggingFaceSource | None:
        """The same architecture, narrow and ``layers`` deep."""
        small = _reduced_settings(self._config, layers=layers, tp=tp)
        if small is None:
            return None
        config = dict(self.config)
        config.update({_canonical(self._config, key): value for key, value in small.items()})
        hf_config = _hf_config(config, self.spec, self.directory, self.trust_remote_code)
        return replace(self, config=config, _config=hf_config)


def huggingface_source(
    *,
    name: str,
    spec: str,
    form: Form,
    config: Mapping[str, Json],
    overrides: Mapping[str, Json],
    trust_remote_code: bool = False,
    directory: str = "",
) -> HuggingFaceSource:
    """Source of a configuration with ``overrides`` in place of its own values."""
    if config.get("auto_map") and not trust_remote_code:
        raise UsageError(
            f"{spec}: the model's code comes with its configuration (auto_map)",
            hint="read that code, then add --trust-remote-code to run it",
        )
    base = _hf_config(config, spec, directory, trust_remote_code)
    task = _task_of(config, base, spec)
    merged = dict(config)
    known = {key for key in {*base.to_dict(), *base.attribute_map} if not key.startswith("_")}
    for key, value in overrides.items():
        least = 1 if key.startswith(("n_", "num_")) or key.endswith("_size") else 0
        if isinstance(value, int) and not isinstance(value, bool) and value < least:
            raise UsageError(f"--set {key}={value}: it must be at least {least}")
        if key not in known and key not in config:
            raise UsageError(
                f"{spec}: the configuration has no key {key!r}",
                hint=near_matches(key, known, what="keys"),
            )
        merged[_canonical(base, key)] = value
    hf_config = _hf_config(merged, spec, directory, trust_remote_code) if overrides else base
    return HuggingFaceSource(
        name=name,
        spec=spec,
        form=form,
        overrides=dict(overrides),
        config=merged,
        task=task,
        trust_remote_code=trust_remote_code,
        directory=directory,
        _config=hf_config,
    )


def read_config(path: Path) -> dict[str, Json]:
    """Configuration of a ``config.json`` or of the directory that holds it."""
    file = path / "config.json" if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"{file} does not exist", hint="give the path of a config.json or of its directory"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{file} can't be read: {error}", hint="give the path of a config.json"
        ) from error
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{file}:{error.lineno}: not JSON: {error.msg}", hint="write the file again"
        ) from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(
            f"{file}: no model configuration (it has no model_type)",
            hint="give the config.json of a Hugging Face model",
        )
    return config


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise UsageError(
            "this model is built by transformers, which is not installed",
            hint="pip install 'autoplan-torch[hf]'",
        ) from error
    return transformers


def _hf_config(
    config: Mapping[str, Json], spec: str, directory: str, trust_remote_code: bool
) -> Any:
    transformers = _transformers()
    if trust_remote_code and config.get("auto_map"):
        loaded = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=True)
        loaded.update(dict(config))
        return loaded
    model_type = str(config["model_type"])
    known = transformers.CONFIG_MAPPING
    if model_type not in known:
        raise UsageError(
            f"{spec}: transformers {transformers.__version__} has no model type {model_type!r}",
            hint=near_matches(model_type, list(known.keys()), what="model types"),
        )
    values = {key: value for key, value in config.items() if key != "model_type"}
    try:
        loaded = known[model_type](**values)
    except Exception as error:
        # transformers validates with its own exception types, which changed between releases.
        text = " ".join(str(error).split())
        raise InputError(
            f"{spec}: invalid configuration: {text}",
            hint="check the configuration and the values given with --set",
        ) from error
    loaded.use_cache = False
    return loaded


def _canonical(config: Any, key: str) -> str:
    return str(config.attribute_map.get(key, key))


def _task_of(config: Mapping[str, Json], hf_config: Any, spec: str) -> str:
    from transformers.models.auto import modeling_auto

    architectures = config.get("architectures")
    named = [str(item) for item in architectures] if isinstance(architectures, list) else []
    for task, (_, suffix, _) in _TASKS.items():
        if any(item.endswith(suffix) for item in named):
            return task
    if any(item.endswith("LMHeadModel") for item in named):
        return "causal_lm"
    for task, (auto, _, mapping) in _TASKS.items():
        custom = config.get("auto_map")
        if isinstance(custom, dict) and auto in custom:
            return task
        if not named and hf_config.model_type in getattr(modeling_auto, mapping):
            return task
    raise UsageError(
        f"{spec}: no head with a known loss ({', '.join(named) or hf_config.model_type})",
        hint="causal LM, masked LM and image classification are known; wrap other models in a "
        "Python file: file.py:factory",
    )


def _has_experts(config: Any) -> bool:
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    return any(getattr(config, name, None) for name in names)


def _as_loss_module(module: Any, task: str) -> nn.Module:
    """The module itself, with a forward that returns the loss: parameter names don't change."""
    base = type(module)

    def image_forward(self: Any, pixel_values: Tensor, labels: Tensor) -> Tensor:
        pixels = pixel_values.to(next(self.parameters()).dtype)
        loss: Tensor = base.forward(self, pixel_values=pixels, labels=labels).loss
        return loss

    def text_forward(self: Any, input_ids: Tensor, labels: Tensor) -> Tensor:
        loss: Tensor = base.forward(self, input_ids=input_ids, labels=labels).loss
        return loss

    forward = image_forward if task == "image_classification" else text_forward
    module.__class__ = type(base.__name__, (base,), {"forward": forward})
    suffix = {"masked_lm": "ForMaskedLM", "causal_lm": "ForCausalLM"}
    module.loss_type = suffix.get(task, "ForImageClassification")
    built: nn.Module = module
    return built


def _register_attention() -> None:
    """Teach transformers an attention that stays one operator, without a mask if it can."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if _ATTENTION in ALL_ATTENTION_FUNCTIONS:
        return

    plain = {"causal_mask_function", "bidirectional_mask_function"}

    def mask(*, mask_function: Any, attention_mask: Any = None, **rest: Any) -> Any:
        if attention_mask is None and getattr(mask_function, "__name__", "") in plain:
            return None
        return sdpa_mask(mask_function=mask_function, attention_mask=attention_mask, **rest)

    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION, mask)


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    settings = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    out = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout,
        is_causal=is_causal and attention_mask is None and query.shape[2] > 1,
        scale=scaling,
        **settings,
    )
    return out.transpose(1, 2).contiguous(), None


def _reduced_settings(config: Any, *, layers: int, tp: int) -> dict[str, Json] | None:
    """Configuration keys of a narrow model that keeps the kind of attention."""
    if config.model_type == "resnet":
        sizes: list[Json] = [32 * tp, 64 * tp]
        depths: list[Json] = [layers, layers]
        return {
            "hidden_sizes": sizes, "depths": depths, "embedding_size": 16 * tp,
            "num_labels": 16 * tp, "image_size": 32,
        }  # fmt: skip
    if not hasattr(config, "num_attention_heads") or not hasattr(config, "hidden_size"):
        return None
    heads = 4 * tp
    small: dict[str, Json] = {
        "num_hidden_layers": layers, "hidden_size": heads * 16, "num_attention_heads": heads,
    }  # fmt: skip
    grouped = getattr(config, "num_key_value_heads", None)
    if grouped is not None:
        small["num_key_value_heads"] = heads if grouped == config.num_attention_heads else 2 * tp
    for key, value in (
        ("intermediate_size", heads * 32),
        ("n_inner", None),
        ("moe_intermediate_size", heads * 32),
        ("vocab_size", 128 * tp),
        ("image_size", 32),
        ("num_labels", 16 * tp),
        ("bos_token_id", 0),
        ("eos_token_id", 1),
        ("pad_token_id", None if getattr(config, "pad_token_id", None) is None else 0),
        ("head_dim", 16),
    ):
        if getattr(config, key, None) is not None:
            small[key] = value
    if getattr(config, "image_size", None) is None:
        small.pop("num_labels", None)
    return small
