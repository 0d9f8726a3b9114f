"""Plans of the local suite: models of different kind, each in several layouts on a few ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autoplan.ir.fields import Json

__all__ = ["LAYOUTS", "MODELS", "RANKS", "Layout", "Model", "Row", "grid"]

RANKS = 2
_EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as `load_model` takes it, and its workload."""

    name: str
    spec: str
    overrides: Mapping[str, Json]
    seq_len: int
    global_batch: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Name and pins of a plan on ``ranks``; a microbatch has a ``part``-th of the global batch.

    Only layouts on `RANKS` ranks are timed: more of them would share cores.
    """

    name: str
    pins: Mapping[str, str]
    part: int = field(kw_only=True)
    ranks: int = field(default=RANKS, kw_only=True)

    def pinned(self, model: Model) -> dict[str, str]:
        """Pins for a model."""
        return {**self.pins, "micro_batch_size": str(model.global_batch // self.part)}


@dataclass(frozen=True, slots=True)
class Row:
    """A model in a layout."""

    model: Model
    layout: Layout

    @property
    def name(self) -> str:
        """Text that `--only` takes."""
        return f"{self.model.name}-{self.layout.name}"


MODELS = (
    Model(
        name="gpt",
        spec="gpt2",
        overrides={
            "n_layer": 4,
            "n_embd": 256,
            "n_head": 4,
            "vocab_size": 8192,
            "n_positions": 256,
            # With dropout the CPU writes out all scores, which no accelerator does.
            "attn_pdrop": 0.0,
        },
        seq_len=256,
        global_batch=8,
    ),
    Model(
        name="moe",
        spec="olmoe-1b-7b",
        overrides={
            "num_hidden_layers": 3,
            "hidden_size": 256,
            "intermediate_size": 256,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "vocab_size": 4096,
            "eos_token_id": 2,
        },
        seq_len=128,
        global_batch=16,
    ),
    Model(
        name="unet",
        spec=f"{_EXAMPLES / 'unet.py'}:model",
        overrides={"channels": 24, "depth": 3, "size": 64},
        seq_len=0,
        global_batch=16,
    ),
)


def _data(zero: int) -> dict[str, str]:
    if zero == 0:
        return {"dp_replicate": "2", "dp_shard": "1", "zero": "0", "recompute": "none"}
    return {"dp_replicate": "1", "dp_shard": "2", "zero": str(zero), "recompute": "none"}


_FULL = {"recompute": "full"}
_SELECTIVE = {"recompute": "selective"}
_TP = {"tp": "2", "recompute": "none"}
_PP = {"pp": "2", "recompute": "none"}


def _loops(schedule: str) -> dict[str, str]:
    return {**_PP, "schedule": schedule, "virtual_stages": "2"}


def _sharded_pipelines() -> tuple[Layout, ...]:
    """FSDP2 in pipelines of two stages, each on two data ranks, with 2 and 4 microbatches."""
    return tuple(
        Layout(
            f"pp-{schedule}-zero{zero}-m{microbatches}",
            {**_PP, "dp_shard": "2", "zero": str(zero), "schedule": schedule},
            part=2 * microbatches,
            ranks=4,
        )
        for zero in (2, 3)
        for schedule in ("1f1b", "gpipe")
        for microbatches in (2, 4)
    )


# Each has ``part / 2`` microbatches with a data axis, ``part`` without.
LAYOUTS = (
    Layout("zero0", _data(0), part=4),
    Layout("zero0-whole", _data(0), part=2),
    Layout("zero0-full", {**_data(0), **_FULL}, part=4),
    Layout("zero1", _data(1), part=4),
    Layout("zero2", _data(2), part=4),
    Layout("zero3", _data(3), part=4),
    Layout("zero3-whole", _data(3), part=2),
    Layout("zero3-full", {**_data(3), **_FULL}, part=4),
    Layout("tp", _TP, part=2),
    Layout("tp-full", {**_TP, **_FULL}, part=2),
    Layout("pp-gpipe", {**_PP, "schedule": "gpipe"}, part=4),
    Layout("pp-1f1b", {**_PP, "schedule": "1f1b"}, part=4),
    Layout("pp-1f1b-small", {**_PP, "schedule": "1f1b"}, part=8),
    Layout("pp-1f1b-full", {**_PP, "schedule": "1f1b", **_FULL}, part=4),
    Layout("zero0-selective", {**_data(0), **_SELECTIVE}, part=4),
    Layout("tp-selective", {**_TP, **_SELECTIVE}, part=2),
    Layout("pp-1f1b-selective", {**_PP, "schedule": "1f1b", **_SELECTIVE}, part=4),
    Layout("pp-interleaved", _loops("interleaved1f1b"), part=4),
    Layout("pp-loopedbfs", _loops("loopedbfs"), part=4),
    Layout("pp-zbv", _loops("zbvzerobubble"), part=4),
    *_sharded_pipelines(),
)


def grid() -> tuple[Row, ...]:
    """All rows, model by model."""
    return tuple(Row(model, layout) for model in MODELS for layout in LAYOUTS)
