"""Studies: every line as -m would have it, the union as one sweep, the command line above all."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf

from bench import command_line, door, usage
from bench.errors import FaultsError, InputError, InvalidRunError, SkipbenchError
from slurm import hydra_plugin

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
STUDIES = sorted(path.stem for path in (CONF / "study").glob("*.yaml"))
TWO = ("method=dense seed=0,1", "method=skipdecode method.preset=2x,4x seed=0")


class Recorder:
    """A launcher that starts nothing."""

    def __init__(self, fails=None):
        self.launched, self.fails = [], fails

    def launch(self, jobs, initial_job_idx):
        self.launched.append((jobs, initial_job_idx))
        if self.fails:
            raise self.fails
        return []


@pytest.fixture
def sweeper():
    """``sweeper(*lines, study)``: what Hydra makes of a study, with its lines or these."""
    hydra_plugin.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()

        def make(*lines, study="shapes_small"):
            given = [f"study={study}"]
            master = loader.load_configuration("config", given, run_mode=RunMode.MULTIRUN)
            assert master.hydra.mode is RunMode.MULTIRUN
            if lines:
                OmegaConf.update(master, "hydra.sweeper.lines", list(lines))
            return Plugins.instance().instantiate_sweeper(
                hydra_context=HydraContext(config_loader=loader, callbacks=Callbacks()),
                task_function=door.Entry(lambda config: None, door._plan),
                config=master,
            )

        yield make


def jobs(sweeper, *arguments):
    """The jobs, as typed: without the plus signs that make Hydra take unknown keys."""
    [batch] = sweeper.batches(command_line.arguments(list(arguments)))
    return [" ".join(word.removeprefix("++") for word in job) for job in batch]


def test_a_study_is_the_union_of_its_lines_in_their_order(sweeper):
    assert jobs(sweeper(*TWO)) == [
        "method=dense seed=0",
        "method=dense seed=1",
        "method=skipdecode method.preset=2x seed=0",
        "method=skipdecode method.preset=4x seed=0",
    ]


def test_all_of_it_is_launched_as_one_sweep_and_the_same_settings_once(sweeper):
    found = sweeper("method=dense seed=0,1", "method=dense seed=1,2")
    found._launcher = Recorder()
    found.sweep([])
    [(launched, first)] = found._launcher.launched
    assert first == 0
    assert [job[-1] for job in launched] == ["++seed=0", "++seed=1", "++seed=2"]


def test_the_command_line_holds_for_every_line_and_sweeps_as_well(sweeper):
    found = jobs(sweeper("method=dense", "method=skipdecode"), "meter.repeats=1,2", "gpu=cpu")
    assert found == [
        "method=dense meter.repeats=1 gpu=cpu",
        "method=dense meter.repeats=2 gpu=cpu",
        "method=skipdecode meter.repeats=1 gpu=cpu",
        "method=skipdecode meter.repeats=2 gpu=cpu",
    ]


@pytest.mark.parametrize(
    ("line", "argument", "expected"),
    [
        ("method=dense seed=0,1,2", "seed=7", ["method=dense seed=7"]),
        ("method=dense seed=0", "seed=7,8", ["method=dense seed=7", "method=dense seed=8"]),
        ("method=dense seed=0", "+method=calm", ["seed=0 +method=calm"]),
        ("+method=dense model=opt1.3b", "model=tiny", ["+method=dense model=tiny"]),
        ("method=dense model.weights=random", "model=tiny", None),
    ],
    ids=["a value", "values", "a method", "a choice", "another key"],
)
def test_the_command_line_takes_the_place_of_the_same_key(line, argument, expected, sweeper):
    expected = [f"{line} {argument}"] if expected is None else expected
    assert jobs(sweeper(line), argument) == expected


def test_a_line_may_be_quoted_as_on_a_command_line(sweeper):
    found = jobs(sweeper("method=dense seed='range(0,3)' results_dir='a b'"))
    assert found == [rf"method=dense seed={seed} results_dir=a\ b" for seed in range(3)]


def test_all_lines_that_cannot_be_read_are_told_with_file_number_and_text(sweeper):
    lines = ("method=dense", "method", "seed='0", "method=[dense,calm]", "seed=1,2")
    with pytest.raises(FaultsError) as caught:
        sweeper(*lines).batches([])
    where = [fault.where for fault in caught.value.faults]
    assert where == [
        f"conf/study/shapes_small.yaml, line {at + 1}: {lines[at]}" for at in (1, 2, 3)
    ]


@pytest.mark.parametrize("word", ["hydra.mode=RUN", "hydra/launcher=slurm", "study=shapes"])
def test_a_line_cannot_set_the_sweep(word, sweeper):
    with pytest.raises(FaultsError, match=r"sets a run, not the sweep(.|\n)*line 1: ") as caught:
        sweeper(f"method=dense {word}").batches([])
    assert f"got:     {word}\n" in str(caught.value)


def test_a_line_that_is_no_text_and_a_study_without_lines_are_refused(sweeper):
    with pytest.raises(FaultsError, match="line 1: 7"):
        sweeper(7).batches([])
    empty = sweeper("method=dense")
    empty._lines = []
    with pytest.raises(FaultsError, match=r"no lines(.|\n)*conf/study/shapes_small\.yaml"):
        empty.batches([])


def test_what_is_wrong_with_jobs_is_told_once_with_all_its_lines(sweeper, tmp_path):
    lines = ("method=skipdecode method.preset=2x,90x", "method=dense seed=0,-1", "method=calm")
    wrong = ("method=dense seed=-1,-1",)
    common = command_line.arguments(["gpu=cpu", f"results_dir={tmp_path}", "action=plan"])
    with pytest.raises(SkipbenchError) as caught:
        sweeper(*lines, *wrong).sweep(common)
    text = str(caught.value)
    assert text.startswith("4 of 7 jobs of this study cannot run; none was started\n")
    heads = [part.splitlines()[:2] for part in text.split("\n\n")[1:]]
    file = "conf/study/shapes_small.yaml"
    assert heads == [
        [f"{file}, line 1: {lines[0]}", "method=skipdecode method.preset=90x"],
        [
            f"{file}, line 2: {lines[1]}   (also of line 4)",
            "method=dense seed=-1   (and 2 more jobs)",
        ],
    ]
    assert text.count("Setting seed is too small") == 1


def test_a_refusal_that_is_of_no_line_stays_as_it_is(sweeper, tmp_path):
    arguments = command_line.arguments(["gpu=cpu", f"results_dir={tmp_path}", "action=plan,list"])
    with pytest.raises(InputError, match="A sweep does one thing"):
        sweeper(*TWO).sweep(arguments)
    found = sweeper(*TWO)
    found._launcher = Recorder(InvalidRunError("2 of 4 runs failed"))
    with pytest.raises(InvalidRunError, match="2 of 4 runs failed"):
        found.sweep([])


@pytest.mark.parametrize("study", STUDIES)
def test_each_line_of_each_study_can_be_planned_anywhere(study, sweeper, tmp_path):
    found = sweeper(study=study)
    [batch] = found.batches([f"study={study}", "gpu=cpu", f"++results_dir={tmp_path}"])
    assert len(batch) >= 2
    planned = found._launcher._gather(batch)
    ids = {job.run_id for job in planned}
    assert None not in ids
    # Two lines with one run would be an oversight.
    assert len(ids) == len(batch)


def test_there_are_studies_with_small_twins():
    whole = [name for name in STUDIES if not name.endswith("_small")]
    assert whole
    assert [f"{name}_small" for name in whole if f"{name}_small" not in STUDIES] == []
    assert [line for line in usage.listing().splitlines() if "@package" in line] == []


def test_what_the_file_sets_holds_for_all_lines_and_a_line_wins_over_it(sweeper):
    found = sweeper("method=dense", "method=dense task=demo meter.repeats=9")
    [batch] = found.batches(["study=shapes_small"])
    first, second = [found._launcher.composer.compose(job) for job in batch]
    assert (first["task"]["name"], first["decode"]["length"]) == ("synthetic", "fixed")
    assert (first["meter"]["repeats"], second["meter"]["repeats"]) == (2, 9)
    assert (second["task"]["name"], second["decode"]["length"]) == ("demo", "until_eos")
    assert second["model"]["weights"] == "random"


# ---- as a user starts them ----


@pytest.fixture
def call(tmp_path):
    """``call(*arguments)``: a command that has ended."""

    def make(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "bench", f"results_dir={tmp_path / 'runs'}", *arguments],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"},
            capture_output=True,
            text=True,
            check=False,
        )

    return make


def test_a_study_needs_no_m_runs_whole_and_is_left_out_once_done(call):
    short = ("gpu=cpu", "meter.batch_size=1", "meter.timed_batches=1", "task.max_new_tokens=3")
    tiny = ("model.shape.vocab_size=400", "model.shape.width=16", "model.shape.num_heads=2")
    command = ("study=shapes_small", *short, *tiny, "meter.repeats=1", "meter.warmups=0")
    ended = call(*command)
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"^sweep: 6 done *$", ended.stdout, re.MULTILINE)
    again = call(*command, "-m")
    assert again.returncode == 0, again.stderr
    assert "left out, already done: 6 of 6 runs" in again.stderr


def test_the_cluster_gets_a_study_as_one_submission(call):
    ended = call("study=shapes", "gpu=h100", "hydra/launcher=slurm", "launch.dry_run=true")
    assert ended.returncode == 0, ended.stderr
    # One array for each of the two models.
    assert "30 runs, 30 jobs, 2 arrays; nothing was handed in" in ended.stdout


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("study=shape", "There is no study of this name"),
        ("study=shapes,shapes_small", "A sweep has one study"),
        ("study=[shapes]", "A sweep has one study"),
    ],
)
def test_a_study_that_is_none_is_refused_with_all_there_are(argument, told, call):
    ended = call(argument, "action=plan")
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"{told}\n")
    assert ", ".join(STUDIES) in ended.stderr
