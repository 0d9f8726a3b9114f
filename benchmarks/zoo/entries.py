"""The models of the zoo: real size, cluster, and the small size that is verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autoplan.capture import list_models

__all__ = ["ROOT", "Entry", "zoo"]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "models"

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One model of the zoo.

    ``overrides`` give the real size, ``small`` those that are verified (empty: the model's own
    reduced form). ``seq_len`` 0 is for inputs without a sequence. ``cluster`` ``""`` means: the
    smallest of a few that holds the training state (`worker.CLUSTERS`). ``library`` is what the
    file imports beyond the project's own dependencies.
    """

    name: str
    family: str
    spec: str
    overrides: Mapping[str, Value] = field(default_factory=dict)
    small: Mapping[str, Value] = field(default_factory=dict)
    seq_len: int = 0
    small_seq_len: int = 0
    global_batch: int = 256
    cluster: str = ""
    library: str = ""


# Family and sequence length of the built-in models, by the start of their names; the longest
# start that fits counts.
FAMILIES: dict[str, tuple[str, int]] = {
    "gpt2": ("decoder", 1024),
    "nanogpt": ("decoder", 1024),
    "gpt-neox": ("decoder", 2048),
    "gpt-oss": ("mixture of experts", 4096),
    "llama": ("decoder", 4096),
    "mistral": ("decoder", 4096),
    "qwen": ("decoder", 4096),
    "gemma": ("decoder", 4096),
    "phi": ("decoder", 4096),
    "phi-2": ("decoder", 2048),
    "opt": ("decoder", 2048),
    "bloom": ("decoder", 2048),
    "mixtral": ("mixture of experts", 4096),
    "qwen3-moe": ("mixture of experts", 4096),
    "qwen3-30b": ("mixture of experts", 4096),
    "qwen3-235b": ("mixture of experts", 4096),
    "deepseek": ("mixture of experts", 4096),
    "olmoe": ("mixture of experts", 4096),
    "bert": ("encoder", 512),
    "roberta": ("encoder", 512),
    "deberta": ("encoder", 512),
    "t5": ("encoder-decoder", 512),
    "flan-t5": ("encoder-decoder", 512),
    "bart": ("encoder-decoder", 1024),
    "whisper": ("speech", 448),
    "vit": ("vision", 0),
    "swin": ("vision", 0),
    "siglip": ("vision and text", 64),
    "clip": ("vision and text", 77),
    "llava": ("vision and text", 2048),
    "qwen2-vl": ("vision and text", 2048),
    "qwen2.5-vl": ("vision and text", 2048),
    "qwen3-vl": ("vision and text", 2048),
    "resnet": ("convolution", 0),
    "convnext": ("convolution", 0),
    "mamba": ("state space", 4096),
}
ORDER = (
    "decoder", "mixture of experts", "encoder", "encoder-decoder", "state space",
    "vision", "convolution", "vision and text", "speech", "diffusion", "recommendation", "graph",
    "adapters", "other",
)  # fmt: skip


def _file(
    name: str,
    family: str,
    file: str,
    *,
    small: Mapping[str, Value],
    overrides: Mapping[str, Value] | None = None,
    seq_len: int = 0,
    small_seq_len: int = 0,
    global_batch: int = 256,
    cluster: str = "",
    library: str = "",
) -> Entry:
    return Entry(
        name=name, family=family, spec=f"examples/models/{file}.py:model",
        overrides=overrides or {}, small=small, seq_len=seq_len, small_seq_len=small_seq_len,
        global_batch=global_batch, cluster=cluster, library=library,
    )  # fmt: skip


def _torchvision(name: str, family: str, small: Mapping[str, Value]) -> Entry:
    return _file(
        f"torchvision {name}", family, "torchvision_model", overrides={"name": name},
        small={"name": name, "num_classes": 16, **small}, global_batch=1024,
        library="torchvision",
    )  # fmt: skip


def _timm(name: str, family: str, small: Mapping[str, Value]) -> Entry:
    return _file(
        f"timm {name}", family, "timm_model", overrides={"name": name},
        small={"name": name, "num_classes": 16, **small}, global_batch=1024, library="timm",
    )  # fmt: skip


def _gcn(kind: str) -> Entry:
    return _file(
        f"GCN ({kind})", "graph", "gcn", overrides={"kind": kind}, global_batch=64,
        small={"kind": kind, "width": 32, "depth": 3, "nodes": 16, "degree": 4},
    )  # fmt: skip


_SMALL_UNET: dict[str, Value] = {"channels": 16, "depth": 2, "size": 16, "classes": 4}

FILES: tuple[Entry, ...] = (
    Entry(name="Qwen2.5-VL 7B", family="vision and text", spec="benchmarks/zoo/qwen2_5_vl.json",
          seq_len=2048, small_seq_len=32),
    _file("token MLP", "decoder", "token_mlp", seq_len=1024, small_seq_len=16,
          overrides={"width": 4096, "depth": 24, "vocab_size": 32768},
          small={"width": 32, "depth": 3, "vocab_size": 64}),
    _file("nn.Transformer", "encoder-decoder", "transformer", seq_len=512, small_seq_len=16,
          small={"width": 32, "heads": 4, "depth": 3, "vocab_size": 64, "longest": 32}),
    _file("own state space", "state space", "state_space", seq_len=4096, small_seq_len=16,
          small={"width": 32, "heads": 4, "depth": 3, "vocab_size": 64, "state": 8, "chunk": 8}),
    _torchvision("resnet50", "convolution", {"image_size": 64}),
    _torchvision("convnext_base", "convolution", {"name": "convnext_tiny", "image_size": 64}),
    _torchvision("swin_t", "vision", {"image_size": 64}),
    _timm("vit_base_patch16_224", "vision",
          {"image_size": 32, "img_size": 32, "depth": 3, "embed_dim": 32, "num_heads": 4}),
    _timm("efficientnet_b0", "convolution", {"image_size": 48}),
    _timm("mixer_b16_224", "vision", {"name": "mixer_s16_224"}),
    _file("U-Net 2-D", "convolution", "unet", small=_SMALL_UNET),
    _file("U-Net 3-D", "convolution", "unet", global_batch=64,
          overrides={"dims": 3, "size": 96, "channels": 32, "colours": 1, "classes": 4,
                     "norm": "instance"},
          small={**_SMALL_UNET, "dims": 3, "colours": 1, "norm": "instance"}),
    _file("own DiT", "diffusion", "dit", small={"width": 32, "heads": 4, "depth": 3, "size": 8}),
    _file("diffusers DiT", "diffusion", "diffusers_dit", library="diffusers",
          small={"heads": 4, "head_width": 8, "depth": 3, "size": 8}),
    _file("diffusers U-Net (Stable Diffusion 1.5)", "diffusion", "diffusers_unet",
          library="diffusers",
          small={"channels": 32, "depth": 1, "cross_width": 32, "heads": 4, "size": 16,
                 "words": 4}),
    _file("DLRM", "recommendation", "dlrm", global_batch=8192,
          small={"tables": 4, "rows": 64, "width": 16, "hidden": 32, "bag": 4}),
    _gcn("scatter"),
    _gcn("gather"),
    _gcn("dense"),
    _gcn("sparse"),
    _file("own LoRA", "adapters", "lora", seq_len=2048, small_seq_len=16, global_batch=128,
          small={"width": 32, "heads": 4, "hidden": 64, "depth": 3, "vocab_size": 64, "rank": 4}),
    _file("peft LoRA on Llama 3 8B", "adapters", "lora_peft", seq_len=2048, small_seq_len=16,
          global_batch=128, library="peft",
          small={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3,
                 "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "rank": 4}),
    _file("multi-task MLP", "other", "multitask", global_batch=4096,
          small={"features": 32, "width": 32, "depth": 3, "classes": 16}),
)  # fmt: skip


def zoo() -> tuple[Entry, ...]:
    """All entries, by family, then built-in models by name, then files."""
    builtins = []
    for name in list_models():
        starts = [start for start in FAMILIES if name.startswith(start)]
        family, seq_len = FAMILIES[max(starts, key=len)] if starts else ("other", 2048)
        builtins.append(
            Entry(name=name, family=family, spec=name, seq_len=seq_len, small_seq_len=32)
        )
    found = [*builtins, *FILES]
    return tuple(sorted(found, key=lambda entry: ORDER.index(entry.family)))
