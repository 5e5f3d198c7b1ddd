"""When runs are handed to W&B: at their end, or at a later start that finds them ended.

Apart, because the records are the truth and W&B is a copy: nothing that goes wrong here ends a run,
changes its exit code or its records; it is one warning, and made up for later. Free of wandb and
torch. Not here: what W&B is shown (``content.py``), the processes that speak to it
(``process.py``), uploads (``online.py``).
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

from bench import report
from bench.config import RunConfig
from bench.errors import SkipbenchError
from bench.identity import digest
from bench.store import Attempt
from bench.tracking import asking, files, online
from bench.tracking.online import Live
from bench.tracking.process import SilentError, WandbError, Writer
from bench.tracking.settings import TrackingConfig

# What may go wrong between the records and W&B.
FAULTS = (WandbError, SkipbenchError, OSError, ValueError)
# An attempt that stopped goes on: only one of these has ended.
_ENDED = ("done", "failed")
# Overrides that say how a sweep is run, not what it is.
_NOT_OF_GROUP = ("action=", "hydra", "launch.", "rerun=", "results_dir=", "tracking", "verbosity=")
# W&B takes no more characters.
_GROUP_LENGTH = 128


@contextmanager
def beside(attempt: Attempt, config: RunConfig) -> Iterator[Callable[[], None]]:
    """Follows an attempt that is being made, and hands it over when it has ended, however it does.

    Yields:
        To be called before anything is timed: waits until what this has started sleeps.
    """
    if config.tracking.mode == "off":
        yield lambda: None
        return
    with Writer(config.tracking.wait_s) as writer:
        if config.tracking.mode == "online":
            live = Live(attempt, config.tracking)
            try:
                yield live.settle
            finally:
                _safely(lambda: _end_live(live, attempt, config, writer), config)
            return
        writer.start()
        try:
            yield writer.settle
        finally:
            _safely(lambda: _hand_over([attempt], config, writer), config)


def catch_up(attempts: Sequence[Attempt], config: RunConfig) -> None:
    """Hands over attempts that ended without: killed at their end, or without a W&B that worked."""
    if config.tracking.mode != "off":
        with Writer(config.tracking.wait_s) as writer:
            _safely(lambda: _hand_over(attempts, config, writer), config)


def of_sweep(config: TrackingConfig, overrides: Sequence[str]) -> TrackingConfig:
    """The same for one of several runs: grouped by the sweep's own words, under its own id.

    The same command gives the same group, so that a sweep that goes on stays one.
    """
    words = (word.lstrip("+") for word in overrides)
    group = config.group or " ".join(word for word in words if not word.startswith(_NOT_OF_GROUP))
    if len(group) > _GROUP_LENGTH:
        group = f"{group[: _GROUP_LENGTH - 13]} {digest({'sweep': group})}"
    # An agent of W&B has an id for one run.
    return replace(config, group=group or None, agent_run_id=None, agent_sweep_id=None)


def built(
    attempts: Sequence[Attempt], config: RunConfig, writer: Writer, *, again: bool = False
) -> tuple[list[str], list[str]]:
    """Builds W&B runs of attempts.

    Args:
        attempts: in any state; those that a process works on are left out.
        config: as what.
        writer: that builds them.
        again: also those that are there already.

    Returns:
        Folders of those that were built, and what went wrong, one text each.
    """
    made, faults = [], []
    for attempt in attempts:
        try:
            wanted = config.tracking
            if not again and files.is_current(attempt, wanted.project, wanted.entity):
                continue
            if attempt.status() != "running" and attempt.start() is not None:
                folder = writer.build(asking.job_of(attempt, wanted))
                # None: another process is at it.
                made += [folder] if folder else []
        except FAULTS as error:
            faults.append(str(error).splitlines()[0] or type(error).__name__)
    return made, faults


@cache
def warn(text: str) -> None:
    """Tells a warning, whatever the verbosity; the same one only once."""
    sys.stderr.write(f"warning: {text}\n")
    sys.stderr.flush()


def _safely(work: Callable[[], None], config: RunConfig) -> None:
    """Does what has to do with W&B, so that nothing of it changes how a run ends."""
    try:
        work()
    except Exception as error:  # noqa: BLE001  # whatever it is, the run's own end must be told
        first = (str(error).splitlines() or [""])[0]
        warn(_made_up_for(f"{type(error).__name__}: {first}", "export-wandb", config))


def _hand_over(attempts: Sequence[Attempt], config: RunConfig, writer: Writer) -> None:
    """Builds, and uploads where that is wanted, what has ended; tells what went wrong."""
    ended = [each for each in attempts if each.status() in _ENDED]
    made, faults = built(ended, config, writer)
    for fault in faults:
        warn(_made_up_for(fault, "export-wandb", config))
    if config.tracking.mode == "online":
        for fault in online.upload(ended, config.tracking).faults:
            warn(_made_up_for(fault, "sync", config))
    elif made:
        what = made[0] if len(made) == 1 else f"{len(made)} runs"
        report.say(f"W&B: {what} (python -m bench action=sync uploads it)", config.verbosity)


def _end_live(live: Live, attempt: Attempt, config: RunConfig, writer: Writer) -> None:
    """The end of a run that was shown live; what W&B lacks is made up for from the records."""
    try:
        live.end()
    except SilentError as error:
        # No network: built for later, and not waited for once more.
        _, faults = built([attempt] if attempt.status() in _ENDED else [], config, writer)
        warn(_made_up_for(next(iter(faults), str(error)), "sync", config))
    except FAULTS:
        # Of another kind, such as a signal that has killed its process.
        _hand_over([attempt], config, writer)


def _made_up_for(fault: str, action: str, config: RunConfig) -> str:
    return (
        f"W&B does not have all of this: {fault}\n"
        f"  the records are not affected; python -m bench action={action} "
        f"results_dir={config.results_dir} makes up for it; tracking=off does without W&B"
    )
