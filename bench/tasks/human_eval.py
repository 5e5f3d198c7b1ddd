"""HumanEval: a signature with its docstring to the body of the function, which is then run.

Apart, because it is one task. What is scored is cut at the first stop in the text: the driver knows
stop ids alone, and a stop may begin in the middle of a token; so what a model writes behind it is
decoded and timed, as in the papers' own code. A prompt is never cut to fit: its end is what the
answer goes on from. There is one split. Not here: how code is run (``bench/sandbox/``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NoReturn

from bench import rows, templated
from bench.errors import InputError
from bench.tasks.contract import Check, Example, Split

_PASS_AT = "pass_at_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Params(templated.Params):
    """Where the problems come from, and how solutions are run.

    Attributes:
        samples_per_problem: solutions decoded for each problem.
        allow_code_execution: run them; else they are decoded only.
        timeout_s: CPU seconds of each.
    """

    hub_id: str | None = "openai/openai_humaneval"
    samples_per_problem: int = 1
    allow_code_execution: bool = False
    timeout_s: float = 3.0

    def __post_init__(self) -> None:
        # By name: a class with slots is made anew, and super() would look in the first one.
        templated.Params.__post_init__(self)
        if self.samples_per_problem < 1 or not self.timeout_s > 0:
            raise InputError(
                "A setting of HumanEval is too small",
                got=f"samples_per_problem={self.samples_per_problem}, timeout_s={self.timeout_s}",
                allowed="at least one sample, and more than 0 seconds",
                where="task.samples_per_problem, task.timeout_s",
            )
        for name in self.scores:
            k = name.removeprefix(_PASS_AT)
            if k != name and int(k) > self.samples_per_problem:
                raise InputError(
                    f"Score {name} needs {k} samples of each problem",
                    got=f"task.samples_per_problem={self.samples_per_problem}",
                    allowed=f"{k} and up, with decode.choose=sample; or other scores",
                    where="task.samples_per_problem, task.scores",
                )


class Task(templated.Templated):
    """Problems; an example's id is its ``task_id``, which all its samples share."""

    layout = rows.Layout(
        title="HumanEval",
        form=".jsonl.gz",
        files={"test": ("HumanEval", "test", "test-*")},
        columns={
            "task_id": (),
            "prompt": (),
            "canonical_solution": (),
            "test": (),
            "entry_point": (),
        },
        id_column="task_id",
        config="openai_humaneval",
    )
    calibration_score = "edit_similarity"
    verbatim: Literal[True] = True

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        self._own, self.samples = params, params.samples_per_problem

    def fields(self, row: rows.Row) -> Mapping[str, str]:
        """The prompt as it is published, and its solution."""
        return {"prompt": row["prompt"], "canonical_solution": row["canonical_solution"]}

    def references(self, row: rows.Row) -> tuple[str, ...]:
        """The published body, for scores that compare texts."""
        return (row["canonical_solution"],)

    def examples(self, split: Split) -> Sequence[Example]:
        """One example per problem, with its tests where code may be run."""
        found = super().examples(split)
        checks: dict[str, Check] = {}
        if self._own.allow_code_execution:
            problems = rows.read(self.layout, self._own, split)
            checks = {row["id"]: self._check(row) for row in problems}
        return [replace(each, parts=None, check=checks.get(each.id)) for each in found]

    def training_pairs(self) -> NoReturn:
        """Refuses: the problems are for tests alone."""
        raise InputError(
            "HumanEval has no training split, which this method's setting or training needs",
            got="task=human_eval",
            allowed="the setting given outright, such as method.schedule_length=N; or another task",
            where="task, method",
        )

    def _check(self, row: rows.Row) -> Check:
        after = f"\n{row['test']}\ncheck({row['entry_point']})\n"
        return Check(before=row["prompt"], after=after, timeout_s=self._own.timeout_s)
