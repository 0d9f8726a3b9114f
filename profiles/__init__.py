"""Source of autoplan.profiles: what machines do, from the catalogue or from measurement."""

if __name__ != "autoplan.profiles":
    raise ImportError("this folder is the source of autoplan.profiles; import it by that name")

from autoplan.profiles.catalogue import list_hardware
from autoplan.profiles.cluster import cluster_record, load_cluster
from autoplan.profiles.measured import MeasuredProfile, load_profile

__all__ = ["MeasuredProfile", "cluster_record", "list_hardware", "load_cluster", "load_profile"]
