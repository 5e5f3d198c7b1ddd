"""Scores of generated text, one file each, found by name."""
