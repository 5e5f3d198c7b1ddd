"""SkipDecode: a layer budget that falls with position, the same for every row of a batch."""
