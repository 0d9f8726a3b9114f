"""Pure data: what a model, a cluster and a plan are. No torch, no solver."""
