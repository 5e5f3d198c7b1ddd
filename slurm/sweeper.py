"""The sweeper: every combination of the swept values, handed to the launcher as one sweep.

Apart from Hydra's own, which composes every job once more only to see that it composes, and writes
a file into the results folder that the next sweep replaces. Not here: checking jobs (the launcher
does, all at once).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class ProductSweeper(Sweeper):
    """Hydra's basic sweeper without a second composition and without a file.

    Not a subclass of it: Hydra's scan for plugins defines that class anew.

    Args:
        max_batch_size: jobs that the launcher gets at once; None for all.
        params: further settings to sweep.
    """

    def __init__(self, max_batch_size: int | None, params: Mapping[str, str] | None) -> None:
        self._max_batch_size = max_batch_size
        self._params = [f"{key}={values}" for key, values in (params or {}).items()]

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Takes what Hydra hands over."""
        self._parser = OverridesParser.create(config_loader=hydra_context.config_loader)
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:  # noqa: ANN401  # Hydra's signature
        """Launches all jobs; raises what the first failed one returned."""
        results: list[JobReturn] = []
        for batch in self.batches(arguments):
            results.extend(self._launcher.launch(batch, initial_job_idx=len(results)))
        for result in results:
            if result.status is JobStatus.FAILED:
                raise result._return_value  # its property would also print a line of Hydra's
        return results

    def batches(self, arguments: Sequence[str]) -> list[list[list[str]]]:
        """The overrides of each job, in the groups that the launcher gets at once."""
        overrides = self._parser.parse_overrides([*self._params, *arguments])
        return BasicSweeper.split_arguments(overrides, self._max_batch_size)
