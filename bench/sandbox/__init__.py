"""Runs Python that a model wrote, where it can do no harm; what it may not do is in the kernel."""
