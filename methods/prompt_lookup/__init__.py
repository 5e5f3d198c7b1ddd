"""prompt_lookup: what followed the newest n-gram before is the draft; the whole model verifies."""
