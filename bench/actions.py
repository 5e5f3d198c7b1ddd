"""Actions that look at a run without making it: plan, prefetch, pin.

Apart from ``run.py``, because a login node does these, without torch. Not here: ``check``, which
needs a tokenizer (``checking.py``); ``list`` and the help page (``usage.py``).
"""

import re
import sys
from collections.abc import Sequence

from huggingface_hub import HfApi

from bench import hub, jobs, lookup, planning
from bench.config import ROOT, RunConfig
from bench.errors import InputError
from bench.tasks.contract import Task
from bench.weights import Weights, baseline_weights, method_weights

_REVISION = re.compile(r"^revision:.*$", re.MULTILINE)
_HUB_ID = re.compile(r"^hub_id:.*$", re.MULTILINE)


def show_plan(config: RunConfig, overrides: Sequence[str]) -> None:
    """Prints what a command would run, and whether it is done."""
    job = jobs.Job(jobs.labels([overrides])[0], config, planning.plan(config).run_id)
    jobs.look_up(job)
    jobs.show([job], f"1 job: {job.status}")


def prefetch(config: RunConfig) -> None:
    """Fetches the weights and the data of a configuration, and says what is here now.

    Raises:
        InputError: for what cannot be had.
    """
    model = config.model
    if model.hub_id is not None and model.weights == "checkpoint" and model.checkpoint is None:
        # Also where a copy is held: the hub may have a newer commit.
        hub.snapshot(model.hub_id, model.revision)
    own = method_weights(model, config.method.name, config.seed)
    found = {"weights": own}
    if config.model.weights != "random":
        base = baseline_weights(config.model, config.method.name, config.meter, own, config.seed)
        found |= {} if base.folder == own.folder else {"dense weights": base}
    for name, weights in found.items():
        sys.stdout.write(f"{name}: {_where(weights)}\n")
    task: Task = lookup.find("bench.tasks", config.task.name, "task").Task(config.task.params)
    examples = task.examples(config.task.split)
    sys.stdout.write(f"data: {len(examples)} examples of {config.task.name}, {config.task.split}\n")


def _where(weights: Weights) -> str:
    """A folder with its size, or that there is none."""
    if weights.folder is None:
        return "random, nothing to fetch"
    size = sum(path.stat().st_size for path in weights.folder.iterdir() if path.is_file())
    return f"{weights.folder} ({size / 1e6:,.0f} MB)"


def pin(config: RunConfig) -> None:
    """Writes the commit that the hub has now of a model's revision into the model's file.

    Raises:
        InputError: for a model that is not from the hub.
    """
    name, hub_id = config.model.name, config.model.hub_id
    path = ROOT / "conf" / "model" / f"{name}.yaml"
    if hub_id is None:
        raise InputError(
            "Only a model of the hub can be pinned",
            got=f"model={name}, which has no hub_id",
            allowed="a model with a hub_id",
            where="model=NAME",
        )
    commit = _commit(hub_id, config.model.revision)
    path.write_text(pinned(path.read_text(encoding="utf-8"), commit), encoding="utf-8")
    sys.stdout.write(f"{path}: revision: {commit}\n")


def pinned(text: str, commit: str) -> str:
    """A model file's text with its revision set; all else, comments too, as it was."""
    line = f"revision: {commit}"
    if _REVISION.search(text):
        return _REVISION.sub(line, text, count=1)
    return _HUB_ID.sub(lambda found: f"{found[0]}\n{line}", text, count=1)


def _commit(hub_id: str, revision: str | None) -> str:
    """The hub's commit; without a reachable hub, that of the local cache."""
    try:
        found = HfApi().model_info(hub_id, revision=revision, timeout=hub.TIMEOUT_S).sha
    except hub.FAULTS as error:
        found = hub.commit_of(hub_id, revision)
        if found is None:
            raise InputError(
                f"Cannot ask the hub for the commit of {hub_id}",
                got=(str(error) or type(error).__name__).strip().splitlines()[0],
                allowed="a reachable hub, and a token for gated models; or a cached copy",
                where="model.hub_id, model.revision",
            ) from error
    return str(found)
