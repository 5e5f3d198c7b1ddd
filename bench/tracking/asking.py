"""What is asked of W&B for an attempt: as the settings say now, or said when it was started.

Apart, because the end of a run, a later start and an export ask for the same; and because the texts
that were decoded are looked up where the task's data are, not where W&B is. Free of wandb and
torch. Not here: when it is asked (``handover.py``).
"""

from typing import Any

from bench import lookup, planning
from bench.binding import bind
from bench.config import TaskChoice, TaskConfig
from bench.errors import InputError, SkipbenchError
from bench.schema import Start
from bench.store import Attempt
from bench.tracking import files
from bench.tracking.content import Reference, sampled
from bench.tracking.jobs import Job
from bench.tracking.settings import TrackingConfig

PROJECT = "skipbench"


def job_of(attempt: Attempt, tracking: TrackingConfig) -> Job:
    """What is handed over of an attempt; what is not asked for now is as the run started.

    Raises:
        InputError: for records that cannot be read.
    """
    start = attempt.start()
    then: dict[str, Any] = {"agent_sweep_id": tracking.agent_sweep_id}
    if start is not None:
        then = dict(start.config.get("tracking") or {})
    before = files.mark(attempt)
    if before is not None:
        then |= {"project": before.project, "entity": before.entity}
    return Job(
        folder=str(attempt.folder.absolute()),
        project=tracking.project or then.get("project") or PROJECT,
        entity=tracking.entity or then.get("entity"),
        group=tracking.group,
        tags=list(tracking.tags or then.get("tags") or ()),
        notes=tracking.notes or then.get("notes"),
        sweep_id=then.get("agent_sweep_id"),
        sample=tracking.sample,
        artifacts=tracking.artifacts,
        references={} if start is None else references(start, tracking.sample),
    )


def references(start: Start, sample: int) -> dict[str, Reference]:
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
    return {each.id: Reference(each.prompt, tuple(each.references)) for each in chosen}


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
