"""The Hydra door: composes and checks a configuration, hands it over, turns refusals into codes.

Apart, because a DictConfig comes no further than here, and because what a user types is checked
before anything heavy is imported. Exit codes: 2 for what cannot be run, 1 for a run that is invalid
and for a fault of the suite itself, which keeps its traceback. Not here: what a run does
(``run.py``) or a training (``training.py``).
"""

import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, NoReturn

import hydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.config import ROOT, RunConfig, from_mapping
from bench.errors import InputError, InvalidRunError, SkipbenchError

CONF = ROOT / "conf"
USAGE_EXIT, INVALID_EXIT = 2, 1

_USAGE = """python -m bench needs a method.

  python -m bench +method=skipdecode                    the embedded model, on this machine
  python -m bench +method=dense task=e2e task.data_dir=DIR
  python -m bench +method=skipdecode method.preset=4x meter.batch_size=1
  python -m bench.train +method=dense model=scratch     (the same settings, to train)

methods: {methods}
Every setting is explained in the files of conf/; group=choice and group.key=value change them.
"""
_SETTING = re.compile(r"([a-z]\w*)(\.\w+)*=")
_SWEEP_FLAGS = {"-m", "--multirun"}


def main() -> None:
    """``python -m bench``."""
    _enter(_run)


def train_main() -> None:
    """``python -m bench.train``."""
    _enter(_train)


def _enter(work: Callable[[RunConfig], None]) -> None:
    """Runs Hydra on the command line, and ``work`` on what it composes."""
    # Tokenizer threads and a later fork do not go together, and the library says so at length.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Hydra then hands its errors on; it would print them with its search path and end with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    entered = False
    exits: list[int] = []

    def task(raw: DictConfig) -> None:
        nonlocal entered
        entered = True
        try:
            work(_bound(raw))
        except SkipbenchError as error:
            # Told and noted, not raised, so that the other jobs of a sweep run.
            sys.stderr.write(f"{error}\n")
            exits.append(INVALID_EXIT if isinstance(error, InvalidRunError) else USAGE_EXIT)

    sys.argv[1:] = _arguments(sys.argv[1:])
    try:
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(task)()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if entered:
            raise
        _refuse(_in_our_words(error))
    if exits:
        sys.exit(min(exits))


def _refuse(text: object) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    sys.exit(USAGE_EXIT)


def _arguments(given: Sequence[str]) -> list[str]:
    """The command line as Hydra gets it: each setting may be new to it.

    Hydra refuses unknown keys one at a time, and advises to add them. Let through, they come to the
    binding, which tells every fault at once, with its full key and near names.
    """
    for index, flag in enumerate(given):
        before, behind = given[:index], given[index + 1 :]
        if flag in _SWEEP_FLAGS and "=" in "".join(before) and "=" in "".join(behind):
            _refuse(
                InputError(
                    f"Settings stand on both sides of {flag}",
                    got=" ".join(given),
                    allowed=" ".join([*before, *behind, flag]),
                    where="the command line; methods: " + ", ".join(_methods()),
                )
            )
    return [f"++{argument}" if _is_setting(argument) else argument for argument in given]


def _is_setting(argument: str) -> bool:
    """Whether an argument sets a value of ours, rather than choose a file of a group."""
    matched = _SETTING.match(argument)
    if matched is None or matched[1] == "hydra":
        return False
    return matched[2] is not None or not (CONF / matched[1]).is_dir()


def _in_our_words(error: Exception) -> object:
    """What Hydra found wrong with a command line."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        near = difflib.get_close_matches(choice, error.options)
        return InputError(
            f"There is no {group} of this name",
            got=f"{choice} (near: {', '.join(near)})" if near else choice,
            allowed=", ".join(error.options),
            where=f"+{group}=NAME; each is one file in conf/{group}/",
        )
    return InputError(
        "The command line cannot be understood",
        got=str(error).split("\nConfig search path")[0].strip(),
        allowed="+method=NAME group=choice group.key=value, and -m for sweeps",
        where="the command line; methods: " + ", ".join(_methods()),
    )


def _methods() -> list[str]:
    from methods.registry import method_names

    return method_names()


def _bound(raw: DictConfig) -> RunConfig:
    """The frozen configuration of a composed one."""
    values: Any = OmegaConf.to_container(raw, resolve=True)
    if OmegaConf.is_missing(raw.method, "name"):
        unknown = sorted(values.keys() - {field.name for field in fields(RunConfig)})
        if not unknown:
            _refuse(_USAGE.format(methods=", ".join(_methods())).rstrip())
        # Hydra takes a misspelt +method= for a new setting.
        raise InputError(
            f"Unknown setting {', '.join(unknown)}, and no method",
            got=" ".join(f"{key}={values[key]}" for key in unknown),
            allowed=f"+method=NAME; methods: {', '.join(_methods())}",
            where="the command line",
        )
    defaults: Any = {}
    path = CONF / "method" / f"{values['method']['name']}.yaml"
    if path.exists():
        defaults = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    return from_mapping(values, defaults)


def _run(config: RunConfig) -> None:
    from bench.run import run

    run(config)


def _train(config: RunConfig) -> None:
    from bench.training import train

    folder = train(config)
    print(f"trained: {folder}")
