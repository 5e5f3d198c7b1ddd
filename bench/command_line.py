"""The command line as Hydra gets it, and what Hydra finds wrong with it in our words.

Apart from the door, which only passes things on. Here is what Hydra would take silently, or refuse
without saying what would be right. Not here: the values of settings (``config.py``).
"""

import difflib
import re
from collections.abc import Sequence

from hydra.errors import MissingConfigException

from bench import usage
from bench.config import ROOT
from bench.errors import InputError

_CONF = ROOT / "conf"
_SETTING = re.compile(r"([a-z]\w*)(\.\w+)*=")
_CHOICES = re.compile(r"\+{0,2}([a-z]\w*)=\[")
_STUDIES = re.compile(r"\+{0,2}study=.*[,\[].*")
# What Hydra reads as a value, and so refuses without naming the group.
_VALUE = re.compile(r"\+{0,2}([a-z]\w*)=(-?\d+(\.\d*)?|true|false)", re.IGNORECASE)
_SWEEP_FLAGS = {"-m", "--multirun"}
_CLUSTER = "hydra/launcher=slurm"


def arguments(given: Sequence[str]) -> list[str]:
    """The command line as Hydra gets it: each setting may be new to it.

    Hydra refuses unknown keys one at a time, and advises to add them. Let through, they come to the
    binding, which tells every fault at once, with its full key and near names.
    """
    for index, flag in enumerate(given):
        before, behind = given[:index], given[index + 1 :]
        if flag in _SWEEP_FLAGS and "=" in "".join(before) and "=" in "".join(behind):
            raise InputError(
                f"Settings stand on both sides of {flag}",
                got=" ".join(given),
                allowed=" ".join([*before, *behind, flag]),
                where="the command line; methods: " + ", ".join(usage.methods()),
            )
    for argument in given:
        _check_one_choice(argument)
    return [word for argument in given for word in _for_hydra(argument)]


def _for_hydra(argument: str) -> list[str]:
    """One argument as Hydra gets it."""
    if argument == _CLUSTER:
        # Hydra asks launchers only for sweeps: without -m it would run the one job here.
        return [argument, "hydra.mode=MULTIRUN"]
    return [f"++{argument}" if _is_setting(argument) else argument]


def _check_one_choice(argument: str) -> None:
    """Refuses a list of choices: Hydra would lay one over the other and run the mixture."""
    if _STUDIES.fullmatch(argument):
        raise InputError(
            "A sweep has one study",
            got=argument,
            allowed=f"one of {', '.join(usage.choices('study'))}; one after the other for several",
            where="study=NAME",
        )
    matched = _CHOICES.match(argument)
    if matched and (_CONF / matched[1]).is_dir():
        raise InputError(
            f"A run has one {matched[1]}",
            got=argument,
            allowed=f"one of {', '.join(usage.choices(matched[1]))}; for several runs a,b and -m",
            where=f"{matched[1]}=NAME",
        )
    matched = _VALUE.fullmatch(argument)
    if matched and (_CONF / matched[1]).is_dir():
        raise InputError(
            f"{matched[1]} is a group of settings, and has no value of its own",
            got=argument,
            allowed=f"one of {', '.join(usage.choices(matched[1]))}; or {matched[1]}.KEY=VALUE",
            where=f"{matched[1]}=NAME",
        )


def _is_setting(argument: str) -> bool:
    """Whether an argument sets a value of ours, rather than choose a file of a group."""
    matched = _SETTING.match(argument)
    if matched is None or matched[1] == "hydra":
        return False
    return matched[2] is not None or not (_CONF / matched[1]).is_dir()


def in_our_words(error: Exception) -> InputError:
    """What Hydra found wrong with a command line."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, choice = error.missing_cfg_file.rpartition("/")
        near = difflib.get_close_matches(choice, error.options)
        return InputError(
            f"There is no {group} of this name",
            got=f"{choice} (near: {', '.join(near)})" if near else choice,
            allowed=", ".join(error.options),
            where=f"{'+' * (group == 'method')}{group}=NAME; each is one file in conf/{group}/",
        )
    return InputError(
        "The command line cannot be understood",
        got=str(error).split("\nConfig search path")[0].strip(),
        allowed="+method=NAME group=choice group.key=value, and -m for sweeps",
        where="the command line; methods: " + ", ".join(usage.methods()),
    )
