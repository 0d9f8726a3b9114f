"""Source of autoplan.solver."""

if __name__ != "autoplan.solver":
    raise ImportError("this folder is the source of autoplan.solver; import it by that name")
