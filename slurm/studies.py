"""Studies: several sweeps handed to the launcher as one.

A study is a list of lines, each of which is settings as on a command line with ``-m``: a union of
products, which one sweep cannot express. What stands on the command line holds for every line, and
takes the place of the line's own setting of the same key. Apart from ``sweeper.py``, which knows
command lines alone. Not here: the lines themselves (``conf/study/``), checking jobs (the launcher
does, all at once).
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from bench import command_line
from bench import jobs as listing
from bench.errors import FaultsError, InputError, InvalidRunError, SkipbenchError
from slurm.launcher import Launcher
from slurm.sweeper import ProductSweeper


class StudySweeper(ProductSweeper):
    """All lines of a study as one sweep.

    Args:
        lines: of the study.
        max_batch_size: ignored: a study is checked whole before anything runs.
        params: further settings for every line, as key -> values.
    """

    def __init__(
        self,
        lines: Sequence[str],
        max_batch_size: int | None = None,
        params: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(None, params)
        self._lines = list(lines)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Takes what Hydra hands over."""
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        name = config.hydra.runtime.choices.get("study")
        self._where = f"conf/study/{name}.yaml" if name else "hydra.sweeper.lines"

    def sweep(self, arguments: list[str]) -> Any:  # noqa: ANN401  # Hydra's signature
        """Launches the jobs of all lines; says of a refusal which line it is of."""
        try:
            return super().sweep(arguments)
        except InvalidRunError:
            raise
        except SkipbenchError as error:
            raise self._by_line(arguments) or error from error

    def batches(self, arguments: Sequence[str]) -> list[list[list[str]]]:
        """The jobs of all lines, each once, in one batch.

        Raises:
            FaultsError: with all lines that cannot be read.
        """
        jobs, faults = dict[tuple[str, ...], None](), list[InputError]()
        for at in range(len(self._lines)):
            try:
                jobs |= dict.fromkeys(map(tuple, self._expanded(at, arguments)))
            except InputError as fault:
                faults.append(fault)
        if not self._lines:
            faults.append(self._fault("The study has no lines", None, "none", "one and more"))
        if faults:
            raise FaultsError(faults)
        return [[list(job) for job in jobs]]

    def _expanded(self, at: int, arguments: Sequence[str]) -> list[list[str]]:
        """The jobs of a line, with what the command line says in place of its own.

        Raises:
            InputError: naming the line.
        """
        parse = self._parser.parse_override
        said = {parse(each).key_or_group for each in arguments}
        try:
            words = command_line.arguments(shlex.split(self._lines[at]))
            own = [(word, parse(word)) for word in words]
        except (SkipbenchError, HydraException, ValueError, AttributeError) as error:
            reason = error.got if isinstance(error, InputError) else error
            raise self._fault(
                "A line of the study cannot be read",
                at,
                reason,
                "settings as on a command line: method=NAME group=choice group.key=value,value",
            ) from error
        for word, override in own:
            if _is_of_the_sweep(override):
                raise self._fault(
                    "A line of a study sets a run, not the sweep", at, word, "the rest of the line"
                )
        kept = [word for word, override in own if override.key_or_group not in said]
        [jobs] = super().batches([*kept, *arguments])
        return jobs

    def _fault(self, failed: str, at: int | None, got: object, allowed: str) -> InputError:
        return InputError(failed, got=got, allowed=allowed, where=self._line(at))

    def _line(self, at: int | None) -> str:
        """How a line is called: its file, its number from 1, its text."""
        return self._where if at is None else f"{self._where}, line {at + 1}: {self._lines[at]}"

    def _by_line(self, arguments: Sequence[str]) -> SkipbenchError | None:
        """What is wrong with jobs, each fault once with the lines it is of; None if nothing is."""
        if not isinstance(self._launcher, Launcher):
            return None
        jobs = [
            (at, job) for at in range(len(self._lines)) for job in self._expanded(at, arguments)
        ]
        labels = listing.labels([job for _, job in jobs])
        faults: dict[str, list[tuple[int, str]]] = {}
        for (at, job), label in zip(jobs, labels, strict=True):
            try:
                self._launcher._job(job, label)
            except SkipbenchError as fault:
                faults.setdefault(str(fault), []).append((at, label))
        if not faults:
            return None
        wrong = sum(map(len, faults.values()))
        told = [f"{wrong} of {len(jobs)} jobs of this study cannot run; none was started"]
        told += [f"\n{self._of(found)}\n{text}" for text, found in faults.items()]
        return SkipbenchError("\n".join(told))

    def _of(self, found: Sequence[tuple[int, str]]) -> str:
        """Where a fault is: the first line in whole, others by their numbers, and the first job."""
        (at, label), *others = found
        lines = dict.fromkeys(f"line {other + 1}" for other, _ in others if other != at)
        also = f"   (also of {', '.join(lines)})" if lines else ""
        more = f"   (and {len(others)} more jobs)" if others else ""
        return f"{self._line(at)}{also}\n{label or 'the only job'}{more}"


def _is_of_the_sweep(override: Override) -> bool:
    """Whether a setting is Hydra's own or chooses a study."""
    key = override.key_or_group
    return key == "study" or key.split(".")[0].split("/")[0] == "hydra"
