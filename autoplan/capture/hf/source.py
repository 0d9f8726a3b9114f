"""`HuggingFaceSource`: a model that ``transformers`` builds from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from autoplan.capture.build import BuiltModule, build_on_meta, to_dtype
from autoplan.capture.hf.attention import attention_settings, set_attention
from autoplan.capture.hf.batches import longest
from autoplan.capture.hf.config import hf_config, transformers_library, with_overrides
from autoplan.capture.hf.experts import expert_settings, with_experts
from autoplan.capture.hf.reduced import reduced_config
from autoplan.capture.hf.tasks import TASKS, as_loss_module, task_of
from autoplan.capture.hf.tracing import exportable, settled
from autoplan.capture.source import Form, ModelSource, torch_dtype
from autoplan.errors import InputError, UsageError
from autoplan.ir.fields import Json

__all__ = ["HuggingFaceSource", "huggingface_source"]


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
        module = self._make({}, experts=None)
        module.train()
        to_dtype(module, torch_dtype(dtype))
        return module.to(device)

    def build_for_trace(self, *, dtype: str | torch.dtype) -> BuiltModule:
        """The same module on the meta device, with attention as one operator."""
        auto = getattr(transformers_library(), TASKS[self.task].auto)
        settings = attention_settings(auto, self._config)
        experts = expert_settings(self._config)
        return with_experts(
            build_on_meta(
                lambda: settled(set_attention(self._make(settings, experts=experts))),
                dtype=torch_dtype(dtype),
            )
        )

    def tracing(self) -> AbstractContextManager[None]:
        """Context in which code that can't be exported is replaced by an exact equal."""
        return exportable(self._config)

    def _make(self, settings: Mapping[str, Any], *, experts: str | None) -> nn.Module:
        transformers = transformers_library()
        task = TASKS[self.task]
        auto = getattr(transformers, task.auto)
        # A copy: building writes the attention implementation into the configuration.
        config = type(self._config).from_dict(self._config.to_dict())
        if experts is not None:
            config._experts_implementation = experts
        # The plan says what to compute in; the file, what its weights are stored in.
        for part in (config, *(getattr(config, key) for key in config.sub_configs)):
            if part is not None:
                part.dtype = None
        extra = {"trust_remote_code": True} if self.trust_remote_code else {}
        try:
            module = auto.from_config(config, **settings, **extra)
        except Exception as error:
            # A library's model may raise anything on settings that don't fit together.
            text = " ".join(str(error).split())
            raise InputError(
                f"{self.spec}: transformers can't build this configuration: {text}",
                hint="check the configuration and the values given with --set",
            ) from error
        return as_loss_module(module, task)

    def batch(
        self, batch_size: int, seq_len: int, *, seed: int = 0, device: str | torch.device = "cpu"
    ) -> dict[str, Tensor]:
        """Random inputs of the task."""
        random = torch.Generator().manual_seed(seed)
        try:
            inputs = TASKS[self.task].batch(self._config, batch_size, seq_len, random, self.name)
        except AttributeError as error:
            raise UsageError(
                f"{self.spec}: no inputs for {self._config.model_type}: {error}",
                hint="wrap the model in a Python file with its own batch(): file.py:factory",
            ) from error
        return {key: value.to(device) for key, value in inputs.items()}

    def has_sequences(self) -> bool:
        """True unless images are the only inputs."""
        return TASKS[self.task].has_sequences

    def longest_sequence(self) -> int | None:
        """Positions of the text model, None if it has no limit."""
        return longest(self._config)

    def reduced(self, *, layers: int, tp: int) -> HuggingFaceSource | None:
        """The same architecture, narrow and ``layers`` deep."""
        config = reduced_config(self.config, self._config, layers=layers, tp=tp)
        if config is None:
            return None
        loaded = hf_config(config, self.spec, self.directory, self.trust_remote_code)
        return replace(self, config=config, _config=loaded)


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
    base = hf_config(config, spec, directory, trust_remote_code)
    task = task_of(config, base, spec)
    merged = with_overrides(config, base, overrides, spec)
    loaded = hf_config(merged, spec, directory, trust_remote_code) if overrides else base
    return HuggingFaceSource(
        name=name,
        spec=spec,
        form=form,
        overrides=dict(overrides),
        config=merged,
        task=task,
        trust_remote_code=trust_remote_code,
        directory=directory,
        _config=loaded,
    )
