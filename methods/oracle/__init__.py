"""oracle: each token leaves at the first layer that agrees with the last; not realisable."""
