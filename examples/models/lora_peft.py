"""A Llama from transformers with LoRA adapters from peft: the base is frozen.

``autoplan solve lora_peft.py:model --cluster 8xh100 --global-batch 64 --seq-len 2048``
"""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class NextToken(nn.Module):
    """Adapted model and the cross entropy of its next token."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy."""
        logits = self.net(input_ids=input_ids, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def model(
    hidden_size: int = 4096,
    intermediate_size: int = 14336,
    num_hidden_layers: int = 32,
    num_attention_heads: int = 32,
    num_key_value_heads: int = 8,
    vocab_size: int = 128256,
    rank: int = 16,
) -> NextToken:
    """Llama 3 8B's sizes."""
    base = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            num_hidden_layers=num_hidden_layers,
            num_attention_heads=num_attention_heads,
            num_key_value_heads=num_key_value_heads,
            vocab_size=vocab_size,
        )
    )
    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules=TARGETS)
    return NextToken(get_peft_model(base, adapters))


def batch(batch_size: int, seq_len: int, vocab_size: int = 128256) -> dict[str, Tensor]:
    """Random tokens."""
    ids = torch.randint(0, vocab_size, (batch_size, seq_len + 1))
    return {"input_ids": ids[:, :-1].clone(), "labels": ids[:, 1:].clone()}
