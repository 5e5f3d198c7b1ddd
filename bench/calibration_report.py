"""What a calibration found, as a table, from its record alone.

Apart, because it is shown at its end and again when it is asked for once more. Not here: runs
(``report.py``).
"""

from rich.console import Console
from rich.table import Table

from bench.calibration_plan import Wanted
from bench.calibration_store import Calibration
from bench.report import say


def show_if_done(wanted: Wanted) -> bool:
    """Shows a calibration that is complete, with a line that says so; False if it has yet to be.

    With ``rerun`` a complete one is set aside.
    """
    config, folder = wanted.planned.config, wanted.folder
    record = folder.record()
    if record is not None and config.rerun:
        folder.set_aside()
        return False
    if record is None:
        return False
    say(f"already done: {folder.path} (rerun=true calibrates again)", config.verbosity)
    show(record, wanted)
    return True


def show(record: Calibration, wanted: Wanted) -> None:
    """Prints the thresholds that were tested, and what is promised of the last one that passed."""
    config = wanted.planned.config
    if config.verbosity == "quiet":
        return
    console = Console()
    console.print(table(record, f"{config.method.name} on {config.model.name}"))
    for line in lines(record):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    path = wanted.folder.path
    console.print(f"records: {path}", soft_wrap=True, markup=False, highlight=False)


def table(record: Calibration, title: str) -> Table:
    """One row a threshold, in the order of testing."""
    drawn = Table(title=f"{title}, calibration {record.calibration_id}", title_justify="left")
    for name in (record.setting, "mean loss", "p-value", "accepted"):
        drawn.add_column(name, justify="right")
    for each in record.tested:
        verdict = "yes" if each.accepted else "no"
        drawn.add_row(
            f"{each.threshold:g}", f"{each.mean_loss:.4f}", f"{each.p_value:.3g}", verdict
        )
    return drawn


def lines(record: Calibration) -> list[str]:
    """What the outcome means, and how it is used."""
    asked = record.promise["calibrate"]
    delta, epsilon = asked["delta"], asked["epsilon"]
    of = f"{record.n} prompts of {record.split}, judged by {record.score}"
    if record.threshold is None:
        found = f"No {record.setting} passed ({of}): every layer runs for every token."
    else:
        found = (
            f"{record.setting}={record.threshold:g}: with a probability of {1 - epsilon:g} over "
            f"the draw of the prompts ({of}), the expected {asked['objective']} loss is at most "
            f"{delta:g}."
        )
    other = "test" if record.split == "validation" else "validation"
    return [
        found,
        f"delta={delta:g}, epsilon={epsilon:g}; fewer than {record.smallest_n} prompts could not "
        "have passed.",
        f"Use: the same command with method.{record.setting}=calibrated task.split={other}, "
        "without action.",
    ]
