"""Source of autoplan.cli."""

if __name__ != "autoplan.cli":
    raise ImportError("this folder is the source of autoplan.cli; import it by that name")
