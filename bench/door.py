"""The Hydra door: composes and checks a configuration, hands it over, turns refusals into codes.

Apart, because a DictConfig comes no further than here, and because what a user types is checked
before anything heavy is imported. Exit codes: 2 for what cannot be run, 1 for a run that is invalid
and for a fault of the suite itself, which keeps its traceback. Not here: how arguments are read
(``command_line.py``), what a run does (``run.py``), a training (``training.py``), a sweep
(``slurm/launcher.py``).
"""

import difflib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, get_args

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench import command_line, usage
from bench.config import DENSE, ROOT, Action, RunConfig, from_mapping
from bench.errors import InputError, InvalidRunError, SkipbenchError
from slurm import hydra_plugin

CONF = ROOT / "conf"
USAGE_EXIT, INVALID_EXIT, INTERRUPTED_EXIT = 2, 1, 130

_HELP_FLAGS = {"-h", "--help"}
_ACTIONS: tuple[str, ...] = get_args(Action)
# These look at files, folders and devices, not at one method's run.
_WITHOUT_METHOD = {"list", "prefetch", "pin", "doctor", "profile-gpu", "export-wandb", "sync"}
_MISSING = "???"


def main() -> None:
    """``python -m bench``."""
    _enter(_act, _plan)


def train_main() -> None:
    """``python -m bench.train``."""
    _enter(_train)


class Entry:
    """What Hydra calls for a single job, and our launchers for the jobs of a sweep.

    Args:
        work: does what a configuration says.
        plan: finds a run's id; None where nothing can be planned.

    Attributes:
        entered: whether Hydra has done its part: from then on its errors are faults of the suite.
        exits: exit codes of refusals that were already told.
    """

    def __init__(
        self, work: Callable[[RunConfig], None], plan: Callable[[RunConfig], str] | None
    ) -> None:
        self._work, self._plan = work, plan
        self.entered = False
        self.exits: list[int] = []

    def __call__(self, raw: DictConfig) -> None:
        """A single job."""
        self.entered = True
        try:
            config = self.bind(_plain(raw))
            if config.action == "run":
                # What a plan refuses needs no torch to be imported; a sweep is planned whole.
                self.plan(config)
            self.run(config)
        except SkipbenchError as error:
            self.tell(error)

    def tell(self, error: SkipbenchError) -> None:
        """Tells a refusal, and notes its exit code."""
        sys.stderr.write(f"{error}\n")
        self.exits.append(INVALID_EXIT if isinstance(error, InvalidRunError) else USAGE_EXIT)

    def bind(self, values: Mapping[str, Any]) -> RunConfig:
        """The frozen configuration of composed values.

        Raises:
            SkipbenchError: with everything that is wrong with them.
        """
        return _bound(dict(values))

    def plan(self, config: RunConfig) -> str | None:
        """The run's id, without torch."""
        return None if self._plan is None else self._plan(config)

    def run(self, config: RunConfig) -> None:
        """Does what the configuration says."""
        try:
            self._work(config)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of a pipe, such as head, has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)

    def in_words(self, error: Exception) -> SkipbenchError:
        """What Hydra found wrong with a command line."""
        return command_line.in_our_words(error)


def _enter(
    work: Callable[[RunConfig], None], plan: Callable[[RunConfig], str] | None = None
) -> None:
    """Runs Hydra on the command line, and ``work`` on what it composes."""
    if _HELP_FLAGS & set(sys.argv[1:]):
        print(usage.page())
        return
    # Tokenizer threads and a later fork do not go together, and the library says so at length.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Hydra then hands its errors on; it would print them with its search path and end with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    hydra_plugin.register()
    entry = Entry(work, plan)
    try:
        sys.argv[1:] = command_line.arguments(sys.argv[1:])
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(entry)()
    except SkipbenchError as error:
        entry.tell(error)
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or "the same command goes on where it was"
        sys.stderr.write(f"stopped; {said}\n")
        sys.exit(INTERRUPTED_EXIT)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if entry.entered:
            raise
        entry.tell(command_line.in_our_words(error))
    if entry.exits:
        sys.exit(min(entry.exits))


def _plain(raw: DictConfig) -> dict[str, Any]:
    """A composed configuration without omegaconf, its references resolved."""
    try:
        values: Any = OmegaConf.to_container(raw, resolve=True)
    except OmegaConfBaseException as error:
        raise command_line.in_our_words(error) from error
    return dict(values)


def _bound(values: dict[str, Any]) -> RunConfig:
    """The frozen configuration of composed values."""
    _check_action(values.get("action"))
    method = values.get("method")
    if isinstance(method, dict) and method.get("name") == _MISSING:
        if values.get("action") in _WITHOUT_METHOD:
            values["method"] = {"name": DENSE}
        else:
            _refuse_without_method(values)
    elif not isinstance(method, dict):
        raise InputError(
            "method has a wrong value",
            got=method,
            allowed="+method=NAME; methods: " + ", ".join(usage.methods()),
            where="the command line",
        )
    return from_mapping(values, _method_defaults(str(values["method"].get("name"))))


def _check_action(action: object) -> None:
    if action not in _ACTIONS:
        near = difflib.get_close_matches(str(action), _ACTIONS)
        raise InputError(
            "There is no action of this name",
            got=f"{action} (near: {', '.join(near)})" if near else action,
            allowed=", ".join(_ACTIONS),
            where="action=NAME",
        )


def _refuse_without_method(values: Mapping[str, Any]) -> NoReturn:
    unknown = sorted(values.keys() - {field.name for field in fields(RunConfig)})
    if not unknown:
        raise SkipbenchError(usage.short())
    # Hydra takes a misspelt +method= for a new setting.
    raise InputError(
        f"Unknown setting {', '.join(unknown)}, and no method",
        got=" ".join(f"{key}={values[key]}" for key in unknown),
        allowed=f"+method=NAME; methods: {', '.join(usage.methods())}",
        where="the command line",
    )


@cache
def _method_defaults(name: str) -> Mapping[str, Any]:
    """The settings of ``conf/method/<name>.yaml`` as they stand there; once for a whole sweep."""
    path = CONF / "method" / f"{name}.yaml"
    if not path.exists():
        return {}
    values: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    return dict(values)


def _plan(config: RunConfig) -> str:
    from bench.jobs import check_writable
    from bench.planning import plan

    check_writable(Path(config.results_dir))
    return plan(config).run_id


def _act(config: RunConfig) -> None:
    """What ``action`` says; each loads no more than it needs."""
    if config.action == "run":
        _run(config)
    elif config.action == "calibrate":
        _calibrate(config)
    elif config.action == "list":
        print(usage.listing())
    elif config.action == "check":
        from bench.checking import check

        check(config)
    elif config.action == "doctor":
        from bench.doctor import show

        sys.exit(show(Path(config.results_dir)))
    elif config.action in ("export-wandb", "sync"):
        _hand_over(config)
    elif config.action == "plan":
        from bench.actions import show_plan

        show_plan(config, HydraConfig.get().overrides.task)
    elif config.action == "prefetch":
        from bench.actions import prefetch

        prefetch(config)
    elif config.action == "profile-gpu":
        from bench.profiling import profile

        profile(config)
    else:
        from bench.actions import pin

        pin(config)


def _run(config: RunConfig) -> None:
    from bench.planning import plan
    from bench.report import show_if_done
    from bench.store import next_attempt
    from bench.tracking.handover import beside, catch_up

    planned = plan(config)
    shown = show_if_done(planned)
    if shown is not None:
        catch_up([shown], config)
        return
    attempt = next_attempt(Path(config.results_dir), planned.run_id, rerun=config.rerun)
    # W&B is loaded beside torch.
    with beside(attempt, config) as settle:
        from bench.run import make

        make(planned, attempt, settle)


def _hand_over(config: RunConfig) -> None:
    from bench.tracking import actions

    (actions.upload if config.action == "sync" else actions.export)(config)


def _calibrate(config: RunConfig) -> None:
    from bench.calibration_plan import plan_calibration
    from bench.calibration_report import show_if_done

    wanted = plan_calibration(config)
    if not show_if_done(wanted):
        from bench.calibrating import make

        make(wanted)


def _train(config: RunConfig) -> None:
    if config.action != "run":
        raise InputError(
            "bench.train only trains",
            got=f"action={config.action}",
            allowed="python -m bench action=...",
            where="action",
        )
    from bench.training import train

    folder = train(config)
    print(f"trained: {folder}")
