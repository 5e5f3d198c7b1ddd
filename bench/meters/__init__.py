"""Instruments: the clock and the memory meter."""
