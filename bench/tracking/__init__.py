"""Runs as W&B shows them: a copy of the records, built when a run has ended, or shown live.

Only three modules load wandb, each in a process of its own: ``writer``, ``live`` and what both fill
a run by, ``wandb_run`` (with ``readback``, its file read back). All others are free of wandb and
torch.
"""
