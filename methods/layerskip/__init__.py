"""LayerSkip: layer dropout and early-exit loss in training; the first layers draft, all verify."""
