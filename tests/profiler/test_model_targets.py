"""Every operator of models of many kinds can be run by itself, whole and on half of its shards."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from autoplan.capture import capture, load_model
from autoplan.profiler.targets import find_targets, targets_to_json
from autoplan.profiler.worker import _timing
from autoplan.profiles.measure.device import Cpu
from benchmarks.zoo.entries import FILES, ROOT, Value

_BUDGET = 1e-4  # seconds: each is run a few times only
_BUILTIN = {
    "bert-base": 16, "convnext-base": 0, "deepseek-v3": 16, "gemma3-1b": 16, "gpt-oss-20b": 16,
    "gpt2": 16, "llama3-8b": 16, "mixtral-8x7b": 16, "resnet50": 0, "t5-large": 16, "vit-large": 0,
    "whisper-large-v3": 16,
}  # fmt: skip
_UNPLANNED = ("GCN (sparse)",)  # sparse tensors aren't captured
_OWN = {
    entry.name: (str(ROOT / entry.spec), entry.small, entry.small_seq_len)
    for entry in FILES
    if not entry.library and entry.spec.startswith("examples") and entry.name not in _UNPLANNED
}


def failures(
    spec: str, overrides: Mapping[str, Value], seq_len: int, *, reduced: bool
) -> tuple[int, list[dict[str, object]]]:
    """Number of a model's targets, and what those that can't be run say."""
    source = load_model(spec, overrides=overrides)
    if reduced:
        source = source.reduced(layers=2, tp=2)
    captured = capture(source, seq_len=seq_len, dtype="float32")
    targets = find_targets([captured.at(2)], (1, 2))
    found = [_timing(record, Cpu(), _BUDGET) for record in json.loads(targets_to_json(targets))]
    assert [timing["signature"] for timing in found] == [t.signature for t in targets]
    return len(targets), [timing for timing in found if "failure" in timing]


def test_operators_of_a_small_mlp_run() -> None:
    count, failed = failures(*_OWN["multi-task MLP"], reduced=False)
    assert count > 20 and failed == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(_OWN) - {"multi-task MLP"}))
def test_operators_of_own_models_run(name: str) -> None:
    count, failed = failures(*_OWN[name], reduced=False)
    assert count > 20 and failed == []


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(_BUILTIN))
def test_operators_of_built_in_models_run(name: str) -> None:
    count, failed = failures(name, {}, _BUILTIN[name], reduced=True)
    assert count > 20 and failed == []
