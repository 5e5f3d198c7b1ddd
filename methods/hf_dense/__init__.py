"""hf_dense: transformers' plain ``generate``, the baseline that most users have."""
