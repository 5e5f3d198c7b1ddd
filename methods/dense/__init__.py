"""The dense baseline: every layer for every token."""
