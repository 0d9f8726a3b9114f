"""Names and literals of generated code.

Everything that a plan file says passes through here on its way into a program: names and
targets are checked against fixed patterns, text becomes a string literal by ``repr`` and a
comment only after every odd character is gone. So a plan file can't put code into a program.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Iterator

from autoplan.errors import InputError
from autoplan.ir.graph import Arg, Bound, Const, Ref
from autoplan.ir.placement import Partial, Placement, Replicate, Shard
from autoplan.rules import library_of

__all__ = [
    "CALLS",
    "LINE_LENGTH",
    "call_lines",
    "comment",
    "dtype_text",
    "fqn_text",
    "identifier",
    "import_line",
    "keyword_text",
    "literal",
    "number_text",
    "operator_call",
    "runtime_call",
    "state_suffix",
    "state_text",
    "string",
]

LINE_LENGTH = 100

CALLS = frozenset(
    {
        "batch_norm",
        "channel_batch_norm",
        "experts",
        "grouped_attention",
        "halo_avg_pool",
        "halo_convolution",
        "halo_interpolate",
        "halo_max_pool",
        "halo_transposed_convolution",
        "partial_adaptive_avg_pool",
        "partial_binary_cross_entropy",
        "partial_binary_cross_entropy_with_logits",
        "partial_cosine_embedding_loss",
        "partial_hinge_embedding_loss",
        "partial_huber_loss",
        "partial_index_add",
        "partial_index_put",
        "partial_kl_div",
        "partial_l1_loss",
        "partial_margin_ranking_loss",
        "partial_mean",
        "partial_mse_loss",
        "partial_scatter_add",
        "partial_smooth_l1_loss",
        "partial_soft_margin_loss",
        "partial_triplet_margin_loss",
        "replicated_alpha_dropout",
        "replicated_attention",
        "replicated_bernoulli",
        "replicated_dropout",
        "replicated_exponential",
        "replicated_feature_alpha_dropout",
        "replicated_feature_dropout",
        "replicated_multinomial",
        "replicated_normal",
        "replicated_rand",
        "replicated_rand_like",
        "replicated_randint",
        "replicated_randint_like",
        "replicated_randn",
        "replicated_randn_like",
        "replicated_randperm",
        "replicated_uniform",
        "row_attention",
        "row_cross_entropy",
        "row_embedding_bag",
        "row_nll_loss",
        "row_parallel_addbmm",
        "row_parallel_addmm",
        "row_parallel_addmv",
        "row_parallel_baddbmm",
        "row_parallel_experts",
        "row_parallel_linear",
        "sharded_alpha_dropout",
        "sharded_attention",
        "sharded_bernoulli",
        "sharded_cumsum",
        "sharded_dropout",
        "sharded_experts",
        "sharded_exponential",
        "sharded_feature_alpha_dropout",
        "sharded_feature_dropout",
        "sharded_log_softmax",
        "sharded_multinomial",
        "sharded_normal",
        "sharded_rand",
        "sharded_rand_like",
        "sharded_randint",
        "sharded_randint_like",
        "sharded_randn",
        "sharded_randn_like",
        "sharded_softmax",
        "sharded_uniform",
        "synced_batch_norm",
        "synced_group_norm",
        "synced_instance_norm",
        "synced_layer_norm",
        "synced_rms_norm",
        "vocab_cross_entropy",
        "vocab_embedding",
        "vocab_embedding_bag",
    }
)
"""Functions of the runtime that a strategy may name in place of the ATen call."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FQN = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_TARGET = re.compile(r"([A-Za-z][A-Za-z0-9_]*)\.([A-Za-z0-9_]+)\.([A-Za-z0-9_]+)")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_DTYPES = frozenset(
    {
        "float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2",
        "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128",
    }
)  # fmt: skip
_LAYOUTS = frozenset({"strided"})
_MEMORY_FORMATS = frozenset(
    {"contiguous_format", "preserve_format", "channels_last", "channels_last_3d"}
)
# What a generated function already uses, and attributes of torch.nn.Module.
_RESERVED = frozenset(
    {
        "aten", "device", "held", "nn", "rt", "self", "torch",
        "T_destination", "add_module", "apply", "bfloat16", "buffers", "call_super_init",
        "children", "compile", "cpu", "cuda", "double", "dump_patches", "eval", "extra_repr",
        "float", "forward", "get_buffer", "get_extra_state", "get_parameter", "get_submodule",
        "half", "ipu", "load_state_dict", "modules", "mtia", "named_buffers", "named_children",
        "named_modules", "named_parameters", "parameters", "register_backward_hook",
        "register_buffer", "register_forward_hook", "register_forward_pre_hook",
        "register_full_backward_hook", "register_full_backward_pre_hook",
        "register_load_state_dict_post_hook", "register_load_state_dict_pre_hook",
        "register_module", "register_parameter", "register_state_dict_post_hook",
        "register_state_dict_pre_hook", "requires_grad_", "set_extra_state", "set_submodule",
        "share_memory", "shared", "state_dict", "to", "to_empty", "tp", "train", "training",
        "type", "xpu", "zero_grad",
    }
)  # fmt: skip


def identifier(name: str) -> str:
    """The name as a variable; one that Python or the program uses gets an underscore.

    >>> identifier("lambda"), identifier("add_1")
    ('lambda_', 'add_1')
    """
    if not _IDENTIFIER.fullmatch(name) or name.startswith("__"):
        raise InputError(f"{name[:80]!r} in the plan is not a name of a tensor")
    if keyword.iskeyword(name) or name in _RESERVED:
        return f"{name}_"
    return name


def fqn_text(fqn: str) -> str:
    """String literal of a fully qualified name."""
    if not _FQN.fullmatch(fqn):
        raise InputError(f"{fqn[:80]!r} in the plan is not a fully qualified name")
    return string(fqn)


def string(text: str) -> str:
    """String literal in double quotes."""
    quoted = ascii(text)
    if quoted.startswith("'") and '"' not in text:
        return f'"{quoted[1:-1]}"'
    return quoted


def dtype_text(name: str) -> str:
    """Expression of a dtype, e.g. ``torch.float32``."""
    if name not in _DTYPES:
        raise InputError(f"{name[:40]!r} in the plan is not a dtype")
    return f"torch.{name}"


def operator_call(target: str) -> str:
    """Expression of an operator: ``aten.linear.default``, ``torch.ops.mylib.fused.default``."""
    match = _TARGET.fullmatch(target)
    if match is None or any(map(keyword.iskeyword, match.groups())):
        raise InputError(f"{target[:80]!r} in the plan is not an operator")
    if match[1] == "aten":
        return target
    if not library_of(target):
        raise InputError(f"{target[:80]!r} in the plan is an operator of no registered library")
    return f"torch.ops.{target}"


def import_line(module: str) -> str:
    """Line that imports a module for the operators it registers."""
    if not _MODULE.fullmatch(module) or any(map(keyword.iskeyword, module.split("."))):
        raise InputError(f"{module[:80]!r} is no name of a module")
    return f"import {module}  # noqa: F401, registers operators"


def runtime_call(name: str) -> str:
    """Expression of a runtime function that replaces an ATen call."""
    if name not in CALLS:
        raise InputError(f"{name[:80]!r} in the plan is not a function of the runtime")
    return f"rt.{name}"


def keyword_text(name: str) -> str:
    """The name of a keyword argument."""
    if not _IDENTIFIER.fullmatch(name) or keyword.iskeyword(name):
        raise InputError(f"{name[:80]!r} in the plan is not a name of an argument")
    return name


def number_text(value: float) -> str:
    """Literal of a float."""
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def literal(arg: Arg, tensors: Iterator[str], device: str) -> str:
    """Expression of an argument; each tensor in it takes the next of ``tensors``."""
    match arg:
        case Ref():
            return next(tensors)
        case Const():
            return _constant(arg, device)
        case Bound(index):
            return f"self.number_{int(index)}"
        case None | bool():
            return repr(arg)
        case int():
            return str(arg)
        case float():
            return number_text(arg)
        case str():
            return string(arg)
        case tuple():
            return f"[{', '.join(literal(item, tensors, device) for item in arg)}]"
    raise InputError(f"argument of type {type(arg).__name__} in the plan")


def _constant(const: Const, device: str) -> str:
    match const.kind:
        case "dtype":
            return dtype_text(const.name)
        case "device":
            return device
        case "layout" if const.name in _LAYOUTS:
            return f"torch.{const.name}"
        case "memory_format" if const.name in _MEMORY_FORMATS:
            return f"torch.{const.name}"
    raise InputError(f"torch constant {const.kind[:40]!r} {const.name[:40]!r} in the plan")


def comment(text: str) -> str:
    """Text as it may stand in a comment or docstring: one line of plain characters."""
    return re.sub(r"[^A-Za-z0-9 _.,:;()\[\]/*+=<>-]+", " ", text)[:80].strip()


def state_text(placement: Placement) -> str:
    """Placement as comments write it."""
    return str(placement).replace(",", ", ")


def state_suffix(placement: Placement) -> str:
    """End of the name of a converted copy: ``R``, ``Rp`` (R*), ``S1`` or ``S1x3``."""
    match placement:
        case Replicate(partial_grad):
            return "Rp" if partial_grad else "R"
        case Shard(dim, _, True):
            return f"S{dim}pad"
        case Shard(dim, blocks):
            return f"S{dim}" if blocks == 1 else f"S{dim}x{blocks}"
        case Partial():
            return "P"


def call_lines(head: str, args: list[str], note: str, indent: int) -> list[str]:
    """Lines of ``head(args)  # note``, broken where it is longer than a line may be."""
    space = " " * indent
    tail = f"  # {note}" if note else ""
    line = f"{space}{head}({', '.join(args)})"
    if len(line) + len(tail) <= LINE_LENGTH:
        return [line + tail]
    above = [f"{space}# {note}"] if note else []
    if len(line) <= LINE_LENGTH:
        return [*above, line]
    inner = f"{space}    {', '.join(args)}"
    if len(inner) <= LINE_LENGTH:
        return [*above, f"{space}{head}(", inner, f"{space})"]
    return [*above, f"{space}{head}(", *(f"{space}    {arg}," for arg in args), f"{space})"]
