"""A made-up row of a published file, and files of such rows."""

import csv
from pathlib import Path

DECODER = Path(__file__).parents[2] / "benchmarks/accuracy/decoder.py:decoder"
ROW = {
    "id": "made-1", "source_url_or_repo_path": "made up", "model": "GPT tiny", "n_layers": "4",
    "hidden": "256", "n_heads": "8", "n_kv_heads": "8", "ffn": "1024", "vocab": "",
    "seq_len": "128", "n_experts": "", "top_k": "", "expert_ffn": "", "etp": "",
    "gpu": "A100-80GB-SXM", "n_gpus": "4", "gpus_per_node": "8",
    "interconnect": "NVSwitch", "precision": "fp16", "dp": "1", "tp": "2", "sp": "", "pp": "2",
    "vpp": "1", "cp": "1", "ep": "", "zero_stage_or_fsdp": "", "hsdp_replicas": "",
    "micro_batch": "2", "global_batch": "16", "recompute": "full", "schedule": "1F1B",
    "attention": "", "compile": "", "step_time_s": "0.1", "step_time_derived_s": "",
    "peak_mem_gib": "", "notes": "", "optimizer": "", "peak_mem_note": "",
}  # fmt: skip


def write(path, *changes):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ROW)
        writer.writeheader()
        for number, change in enumerate(changes):
            writer.writerow({**ROW, "id": f"made-{number}", **change})
    return path
