"""One W&B run: begun, filled from a Content, ended.

Apart, because a run that is shown live and one that is built at its end are filled by the same
text. Imports wandb, so only processes of W&B's own load it. Not here: what is shown
(``content.py``), when (``writer.py``, ``live.py``).
"""

import os
from pathlib import Path
from typing import Any, Literal

import wandb

from bench import store
from bench.tracking import files
from bench.tracking.content import BATCH, Chart, Content, Sheet
from bench.tracking.jobs import Job

_RECORDS = (store.START, store.SEGMENTS, store.BATCHES, store.HEADER, store.FAILURE, store.LOG)
_LEGS = ("method", "baseline", "own_dense", "pair")
# W&B's drawings by our kinds.
_DRAWINGS = {"line": "wandb/line/v0", "scatter": "wandb/scatter/v0"}


def begin(job: Job, shown: Content, mode: Literal["offline", "online"]) -> wandb.Run:
    """The run in W&B, with its configuration; ``online`` goes on with what is there of it."""
    keep_files_in(files.folder_of(job.attempt))
    run = wandb.init(
        mode=mode,
        dir=job.folder,
        project=job.project,
        entity=job.entity,
        id=shown.run_id,
        name=shown.name,
        group=job.group or shown.group,
        job_type=shown.job_type,
        tags=job.tags or None,
        notes=job.notes,
        config=shown.config,
        resume="allow" if mode == "online" else None,
        reinit="create_new",
        settings=_settings(job),
    )
    run.define_metric(BATCH, hidden=True, summary="none")
    for leg in _LEGS:
        # By batch, and out of the summary, which is of the whole run.
        run.define_metric(f"{leg}/*", step_metric=BATCH, summary="none")
    for name in ("batch_examples", "segment"):
        run.define_metric(name, step_metric=BATCH, summary="none")
    return run


def fill(run: wandb.Run, job: Job, shown: Content) -> None:
    """All that is known at the end: headline numbers, tables, charts, record files."""
    run.summary.update(shown.summary)
    media: dict[str, Any] = {name: _table(sheet) for name, sheet in shown.sheets.items()}
    media |= {f"charts/{name}": _drawn(chart) for name, chart in shown.charts.items()}
    step = _step_of_media(run, shown)
    if media and step is not None:
        run.log(media, step=step)
    if job.artifacts:
        records = wandb.Artifact(f"records-{shown.run_id}", type="records")
        for name in _RECORDS:
            path = Path(job.folder) / name
            if path.exists():
                # Not copied: records are only added to, and an attempt that ends is not.
                records.add_file(str(path), policy="immutable", skip_cache=True)
        run.log_artifact(records)


def _step_of_media(run: wandb.Run, shown: Content) -> int | None:
    """The last batch's; the next one if W&B has closed that and no further batch will come.

    None where one will: it would find its step taken.
    """
    last = len(shown.history) - 1
    if last >= run.starting_step:
        return last
    return last + 1 if shown.summary["status"] == "done" else None


def end(run: wandb.Run, status: str) -> None:
    """The run's end, as its status says: 0 for done, 1 for failed; stopped is to go on."""
    if status == "stopped":
        run.mark_preempting()
    run.finish(exit_code=0 if status == "done" else 1)


def keep_files_in(folder: Path) -> None:
    """Makes wandb keep what it writes beside the run, not in the home folder."""
    os.environ["WANDB_DATA_DIR"] = str(folder)
    os.environ["WANDB_CACHE_DIR"] = str(folder / "cache")


def _settings(job: Job) -> wandb.Settings:
    """Nothing of this process is of interest: neither its output, nor its code, nor its load."""
    return wandb.Settings(
        silent=True,
        console="off",
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        save_code=False,
        sweep_id=job.sweep_id,
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
        x_transaction_log_flush_interval=1,
    )


def _table(sheet: Sheet) -> wandb.Table:
    # Scores may be missing, and whole or not.
    return wandb.Table(columns=[*sheet.columns], data=[*sheet.rows], allow_mixed_types=True)


def _drawn(chart: Chart) -> Any:  # noqa: ANN401  # wandb does not name its type
    fields = {"x": chart.x, "y": chart.y}
    fields |= {"stroke": chart.by} if chart.kind == "line" else {}
    return wandb.plot_table(
        vega_spec_name=_DRAWINGS[chart.kind],
        data_table=_table(chart.sheet),
        fields=fields,
        string_fields={"title": chart.title},
    )
