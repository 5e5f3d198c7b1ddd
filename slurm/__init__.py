"""Launchers for SLURM and the local machine."""
