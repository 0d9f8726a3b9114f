"""Memory that a rank frees stays with it."""

import subprocess
import sys

SCRIPT = """
import resource, sys
import torch
from autoplan.runtime import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    print("none"); sys.exit()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def step():
    kept = [torch.zeros(2**20) for _ in range(40)]
step(), step()
before = faults()
for _ in range(5):
    step()
print(faults() - before)
"""


def faults(how):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


def test_pages_are_filled_once():
    kept = faults("keep")
    assert kept == "none" or int(kept) < int(faults("free")) / 10
