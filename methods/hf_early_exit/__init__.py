"""hf_early_exit: transformers' self-speculative ``generate``; the first layers draft."""
