"""Data sets with their prompt templates, one file each, found by name."""
