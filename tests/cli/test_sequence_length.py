"""The sequence length of a solve: the model's longest is allowed, one more is not."""

from __future__ import annotations

import pytest

from autoplan.capture import load_model
from autoplan.cli.planning import sequence_length
from autoplan.errors import UsageError


def test_longest_sequence_is_allowed_and_no_longer_one() -> None:
    source = load_model("gpt2")
    assert sequence_length(source, 1024) == 1024
    assert sequence_length(source, None) == 1024
    with pytest.raises(UsageError, match="1025 exceeds the 1024 positions"):
        sequence_length(source, 1025)


def test_images_have_no_sequence_length() -> None:
    assert sequence_length(load_model("resnet50"), 1024) == 0
