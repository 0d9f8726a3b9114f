"""Measuring the operators that the plans of a model would run, on the machine itself."""
