"""The command line: parsing, exit codes and printing; no logic.

`autoplan.cli.main.main` is the console script. Every command is a function in a module of
its own that returns an `Outcome`; only `main` prints.
"""

if __name__ != "autoplan.cli":
    raise ImportError("this folder is the source of autoplan.cli; import it by that name")

__all__: list[str] = []
