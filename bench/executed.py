"""Answers that are code: whether they may be run, and what came of those that were.

Apart, because a run asks three times: before it decodes, at every batch, and for its records. Free
of torch. Not here: how code is run (``sandbox/``), what is made of it (``scores/``).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bench import lookup
from bench.sandbox import pool
from bench.sandbox.limits import Limits
from bench.tasks.contract import Example, Task

Execute = Callable[[Sequence[str], Sequence[Example]], list[str]]


def wanted(examples: Sequence[Example]) -> bool:
    """Whether answers are to be run: then there is something to run them against."""
    return examples[0].check is not None


def refuse_without_sandbox(examples: Sequence[Example]) -> None:
    """Refuses code where it cannot be run safely.

    Raises:
        InputError: saying why it cannot.
    """
    if wanted(examples):
        pool.refuse_without()


def note(task: Task, examples: Sequence[Example]) -> str | None:
    """What a user must know whose answers are not run; None where nothing needs it."""
    if wanted(examples):
        return None
    empty = [
        name
        for name in task.scores
        if getattr(lookup.find("bench.scores", name, "score"), "executes", False)
    ]
    if not empty:
        return None
    return (
        f"no code is run, so {', '.join(empty)} stays empty: task.allow_code_execution=true runs "
        "what the model writes in a sandbox (docs/sandbox.md)"
    )


def executor(tell: Callable[[str], None]) -> Execute:
    """Runs the answers of a batch, as many at one time as there are cores; tells how far it is."""
    return partial(_outcomes, tell)


def facts(examples: Sequence[Example]) -> dict[str, Any]:
    """For the record: how answers were run; empty where they were not."""
    return {"sandbox": pool.facts(_limits(examples[0]))} if wanted(examples) else {}


def _outcomes(
    tell: Callable[[str], None], texts: Sequence[str], examples: Sequence[Example]
) -> list[str]:
    programs = [
        f"{each.check.before}{text}{each.check.after}"
        for text, each in zip(texts, examples, strict=True)
        if each.check is not None
    ]
    found = pool.execute_all(
        programs,
        _limits(examples[0]),
        pool.cores(),
        lambda done: tell(f"running code, {done} of {len(programs)}"),
    )
    return [each.outcome for each in found]


def _limits(example: Example) -> Limits:
    return Limits() if example.check is None else Limits(timeout_s=example.check.timeout_s)
