"""What can be typed: the help page, the answer to a missing method, and the list of all choices.

Apart, because it is read from the folders of ``conf/`` and stays true when one is added. Loads
nothing heavy: help comes at once. Not here: refusals of single settings (``binding.py``).
"""

import re
import textwrap
from pathlib import Path

from bench.config import ROOT
from methods.registry import method_names

_CONF = ROOT / "conf"
# Configures Hydra itself; its choices are few and stand in the text.
_HYDRAS = "hydra"
# The order in which a user thinks of them; others follow.
_FIRST_GROUPS = ("method", "model", "task", "gpu", "decode", "meter", "engine", "train")

_EXAMPLES = """\
  python -m bench +method=skipdecode                        the embedded model, on this machine
  python -m bench +method=dense task=e2e task.data_dir=DIR
  python -m bench +method=skipdecode method.preset=4x meter.batch_size=1
"""

_SHORT = """\
python -m bench needs a method.

{examples}\
  python -m bench.train +method=dense model=scratch         (the same settings, to train)

methods: {methods}
Every setting is explained in the files of conf/; group=choice and group.key=value change them.
python -m bench --help tells more.
"""

_PAGE = """\
Measures methods that skip layers, exit early or draft with their own lower layers: quality and
speed of the same run, beside a dense baseline.

usage: python -m bench +method=NAME [GROUP=CHOICE ...] [GROUP.KEY=VALUE ...] [-m]
       python -m bench action=ACTION ...
       python -m bench.train +method=NAME model=scratch ...

{examples}\
  python -m bench +method=dense,skipdecode seed='range(0,3)' -m     a sweep: all combinations
  python -m bench +method=dense,skipdecode seed=0,1 action=plan -m  what it would run
  python -m bench study=shapes action=plan                          several sweeps as one
  python -m bench +method=dense gpu=h100 hydra/launcher=slurm -m    as jobs of a SLURM cluster
  python -m slurm status                                            how these stand
  python -m bench.train +method=dense model=scratch task=demo       train (train.steps=..., ...)
  python -m analysis runs --format table                            every run so far

actions:
  run          run, or show what was already run (the default)
  plan         show what would run, and what of it is done; also with -m
  check        all that can be known without running: weights, settings, lengths, memory
  calibrate    find the threshold of a method that keeps a promised loss (calibrate.delta=...)
  list         methods, models, tasks and all other choices, a line each
  prefetch     fetch weights and data, for machines without network
  pin          write the commit that the hub has now into the model's file
  doctor       look after the records in results_dir
  profile-gpu  measure this device's peak rates, and add a device profile
  export-wandb build the W&B runs of the runs in results_dir, offline
  sync         upload those that are not yet in W&B (docs/tracking.md)

groups (a choice is a file conf/GROUP/CHOICE.yaml, which explains each of its settings):
{groups}

of the whole: results_dir=DIR seed=N rerun=true verbosity=quiet|normal|debug

  -m              a sweep over comma-separated choices and values, put at the end
  --cfg job       show the whole configuration, run nothing
  --hydra-help    Hydra's own options
  -h, --help      this page

A sweep is checked whole before its first run starts. A run that is done is not run again
(rerun=true does); one that was stopped goes on. Exit codes: 0 all is well, 1 a run failed,
2 something cannot be run as asked.
"""


def methods() -> list[str]:
    """All methods, for refusals."""
    return method_names()


def short() -> str:
    """The answer to a command without a method."""
    return _SHORT.format(examples=_EXAMPLES, methods=", ".join(methods())).rstrip()


def page() -> str:
    """The answer to ``--help``."""
    lines = []
    for group in groups():
        flag = "+method=" if group == "method" else f"{group}="
        head, names = f"  {flag:<10} ", ", ".join(choices(group))
        lines.append(
            textwrap.fill(
                names, 96, initial_indent=head, subsequent_indent=" " * 13, break_on_hyphens=False
            )
        )
    return _PAGE.format(examples=_EXAMPLES, groups="\n".join(lines)).rstrip()


def listing() -> str:
    """All choices of all groups, each with the first line of its file."""
    parts = []
    for group in groups():
        flag = "+method=" if group == "method" else f"{group}="
        names = choices(group)
        width = max(map(len, names))
        parts.append(f"{flag}")
        parts += [f"  {n:<{width}}  {_about(_CONF / group / f'{n}.yaml')}" for n in names]
        parts.append("")
    return "\n".join(parts).rstrip()


def groups() -> list[str]:
    """The folders of ``conf/`` that hold choices of ours."""
    found = {path.name for path in _CONF.iterdir() if path.is_dir()} - {_HYDRAS}
    first = [group for group in _FIRST_GROUPS if group in found]
    return first + sorted(found - set(first))


def choices(group: str) -> list[str]:
    """The choices of a group, sorted."""
    return sorted(path.stem for path in (_CONF / group).glob("*.yaml"))


def _about(path: Path) -> str:
    """The first line of a file, which says what it is, up to its last whole sentence."""
    with path.open(encoding="utf-8") as file:
        # A line with @ is for Hydra.
        first = next(line for line in file if not line.startswith("# @"))
    line = first.removeprefix("#").strip()
    if line.endswith("."):
        return line
    whole = re.match(r".*\.(?= [A-Z])", line)
    return whole[0] if whole else f"{line} ..."
