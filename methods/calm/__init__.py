"""CALM: each token leaves at the first layer that is confident enough (arXiv 2207.07061)."""
