"""A small captured model, shared by the tests of the outer search."""

from __future__ import annotations

import pytest

from autoplan.capture import Captured, capture, load_model


@pytest.fixture(scope="session")
def small_model() -> Captured:
    """A nanoGPT of three layers with tied embeddings, at 32 tokens."""
    source = load_model(
        "nanogpt",
        overrides={"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 256, "block_size": 32},
    )
    return capture(source, seq_len=32, dtype="bfloat16")
