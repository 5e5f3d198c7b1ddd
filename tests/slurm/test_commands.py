"""What SLURM's tools print is read as they mean it."""

import subprocess

import pytest

from bench.errors import InputError
from slurm import commands
from slurm.commands import Accounted, Held


@pytest.fixture
def answers(monkeypatch):
    """``answers(tool=(code, out, err))``: what SLURM's tools say; gives what they were asked."""
    asked = []

    def make(**said):
        def call(*words):
            asked.append(words)
            code, out, err = said[words[0]]
            return subprocess.CompletedProcess(words, code, out, err)

        monkeypatch.setattr(commands, "_call", call)
        monkeypatch.setattr(commands, "available", lambda: True)
        return asked

    return make


def test_ids_that_accounting_writes_together_are_told_apart(answers):
    lines = (
        "12_1|FAILED|1:0|1:0|7",
        "12_[2,4-6%2]|PENDING|0:0||0",
        "13|CANCELLED by 0|0:15|0:0|3",
        "14|FAILED|9:0|0:9|4",
        "9|X|0:0|0:0|1",
    )
    answers(sacct=(0, "".join(f"{line}\n" for line in lines), ""))
    wanted = {"12_1", "12_2", "12_5", "13", "14"}
    assert commands.accounted(wanted) == {
        "12_1": Accounted("FAILED", 1, 0, 7),
        "12_2": Accounted("PENDING", 0, 0, 0),
        "12_5": Accounted("PENDING", 0, 0, 0),
        "13": Accounted("CANCELLED", 0, 15, 3),
        # Killed below the script, which srun gave the signal as its exit code.
        "14": Accounted("FAILED", 9, 9, 4),
    }


def test_without_accounting_nothing_is_known_rather_than_nothing_there(answers):
    answers(sacct=(1, "", "Slurm accounting storage is disabled"))
    assert commands.accounted({"1"}) is None


def test_jobs_that_the_controller_has_forgotten_are_no_fault_but_silence_is(answers):
    answers(squeue=(0, "12_3|RUNNING|None\n12_4|PENDING|Resources\n", ""))
    assert commands.held({"12_3", "12_4", "7"}) == {
        "12_3": Held("RUNNING", "None"),
        "12_4": Held("PENDING", "Resources"),
    }
    answers(squeue=(1, "", "slurm_load_jobs error: Invalid job id specified"))
    assert commands.held({"7"}) == {}
    answers(squeue=(1, "", "slurm_load_jobs error: Unable to contact slurm controller"))
    with pytest.raises(InputError, match="Unable to contact"):
        commands.held({"7"})


def test_a_site_may_allow_fewer_tasks_than_its_arrays_may_have(answers):
    lines = "KillWait = 45 sec\nMaxArraySize            = 1001\n"
    answers(scontrol=(0, lines, ""))
    assert commands.site() == commands.Site(1001, 45, known=True)
    answers(scontrol=(0, f"{lines}SchedulerParameters = a=1,max_array_tasks=64,b\n", ""))
    assert commands.site().max_array_size == 64
    answers(scontrol=(1, "", "unable to contact"))
    assert not commands.site().known


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("59", 59),
        ("1:02", 62),
        ("10:00", 600),
        ("1:00:01", 3601),
        ("2-01:00:00", 176400),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_time_left_is_read_in_all_its_forms(answers, text, seconds):
    answers(squeue=(0, f"{text}\n", ""))
    assert commands.seconds_left("1") == seconds


def test_why_a_job_is_not_queued_again_is_told(answers):
    answers(scontrol=(1, "", "Job/step already completing or completed for job 3\n"))
    assert commands.requeue("3") == "Job/step already completing or completed for job 3"
    answers(scontrol=(0, "", ""))
    assert commands.requeue("3") is None
