"""Runs and measures decoding methods: the door, the drivers, the records."""
