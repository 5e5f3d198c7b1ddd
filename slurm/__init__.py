"""Launchers of sweeps: checked whole, then run here (SLURM is to come)."""
