"""Source of autoplan.profiles."""

if __name__ != "autoplan.profiles":
    raise ImportError("this folder is the source of autoplan.profiles; import it by that name")
