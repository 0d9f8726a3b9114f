"""From a plan to the program that runs it: readable PyTorch text, launch files, no torch here."""

from autoplan.emit.program import emit_program, program_files

__all__ = ["emit_program", "program_files"]
