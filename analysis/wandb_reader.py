"""``python -m analysis.wandb_reader ENTITY/PROJECT``: the project's runs of this suite, as JSON.

Apart, as a process of its own, because wandb takes a second to load. Not here: what is made of the
answer (``wandb_source.py``).
"""

import json
import sys

import wandb


def main(path: str) -> None:
    """Writes one line a run: its state, config and summary."""
    for run in wandb.Api().runs(path, lazy=False):
        config = dict(run.config)
        # Others may share the project.
        if {"run_id", "attempt", "identity"} <= config.keys():
            # Tables and drawings are references to files.
            summary = run.summary_metrics.items()
            plain = {name: value for name, value in summary if not isinstance(value, dict)}
            line = {"state": run.state, "config": config, "summary": plain}
            sys.stdout.write(json.dumps(line, default=str) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
