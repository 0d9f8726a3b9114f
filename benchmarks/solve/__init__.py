"""How long solving takes: `python -m benchmarks.solve` lists what it measures."""
