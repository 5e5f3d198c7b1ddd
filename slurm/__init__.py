"""Launchers of sweeps: checked whole, then run here or as jobs of a SLURM cluster."""
