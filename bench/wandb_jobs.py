"""What a process of W&B's own is asked to hand over: an attempt, and as what.

Apart, because the end of a run, a later start and an export ask for the same. Free of wandb and
torch. Not here: what is made of it (``tracked.py``), when it is asked (``tracking.py``).
"""

from typing import Any

from bench import lookup, planning, wandb_files
from bench.binding import bind
from bench.config import TaskChoice, TaskConfig
from bench.errors import InputError, SkipbenchError
from bench.schema import Start
from bench.store import Attempt
from bench.tracking_settings import TrackingConfig
from bench.tracked import sampled

PROJECT = "skipbench"


def job(attempt: Attempt, tracking: TrackingConfig) -> dict[str, Any]:
    """A ``wandb_run.Job`` in its JSON form; what is not asked for now is as the run started.

    Raises:
        InputError: for records that cannot be read.
    """
    start = attempt.start()
    then: dict[str, Any] = {"agent_sweep_id": tracking.agent_sweep_id}
    if start is not None:
        then = dict(start.config.get("tracking") or {})
    before = wandb_files.mark(attempt)
    if before is not None:
        then |= {"project": before.project, "entity": before.entity}
    return {
        "folder": str(attempt.folder.absolute()),
        "project": tracking.project or then.get("project") or PROJECT,
        "entity": tracking.entity or then.get("entity"),
        "group": tracking.group,
        "tags": list(tracking.tags or then.get("tags") or ()),
        "notes": tracking.notes or then.get("notes"),
        "sweep_id": then.get("agent_sweep_id"),
        "sample": tracking.sample,
        "artifacts": tracking.artifacts,
        "references": {} if start is None else references(start, tracking.sample),
    }


def destination(tracking: TrackingConfig) -> dict[str, str | None]:
    """Where a run is asked to be; None where it may be anywhere."""
    return {"project": tracking.project, "entity": tracking.entity}


def references(start: Start, sample: int) -> dict[str, Any]:
    """Prompts and references of a sample of the examples, where the task's data are at hand.

    Empty where they are not, or are no longer those that the run decoded.
    """
    try:
        examples, found = planning.examples_by_id(_task(start))
        known = start.identity["task"]["examples"]
    except (SkipbenchError, OSError, KeyError, TypeError):
        return {}
    if found != known:
        return {}
    ids = list(examples)
    chosen = [examples[ids[at]] for at in sampled(len(ids), sample)]
    return {each.id: {"prompt": each.prompt, "texts": list(each.references)} for each in chosen}


def _task(start: Start) -> TaskConfig:
    """The task of a run, of its configuration as recorded."""
    raw = dict(start.config["task"])
    faults: list[InputError] = []
    module = lookup.find("bench.tasks", raw["name"], "task")
    params = bind(module.Params, raw.pop("params"), "task", faults)
    choice = bind(TaskChoice, raw, "task", faults)
    if params is None or choice is None:
        raise faults[0]
    return TaskConfig(choice.name, choice.split, choice.limit, choice.max_new_tokens, params)
