"""The verdict of ``make benchmark``: what its file holds, and when it fails."""

import csv

import all_benchmarks
import judged
import pytest

AMX = "processor : 0\nflags\t\t: fpu avx512_bf16 amx_bf16 amx_tile\n"
NO_AMX = "processor : 0\nflags\t\t: fpu avx512_bf16\n"


def test_the_file_holds_name_ratio_range_threshold_and_whether_it_is_judged(tmp_path):
    results = judged.Results(matrix_instructions=False)
    results.add("a / b", (1.25, 1.0, 1.5), 1.2)
    results.add("by matrices", (3.0, 2.0, 4.0), 14.0, needs_matrix_instructions=True)
    path = tmp_path / "results" / "benchmarks.csv"
    results.write(path)
    with path.open(encoding="utf-8", newline="") as file:
        first, *rows = csv.reader(file)
    assert first == ["name", "ratio", "low", "high", "threshold", "judged"]
    assert rows == [
        ["a / b", "1.2500", "1.0000", "1.5000", "1.2000", "True"],
        ["by matrices", "3.0000", "2.0000", "4.0000", "14.0000", "False"],
    ]


@pytest.mark.parametrize(
    ("value", "needs", "has", "code"),
    [
        pytest.param(1.0, False, False, 0, id="reached"),
        pytest.param(0.99, False, False, 1, id="a judged one falls short"),
        pytest.param(0.99, True, False, 0, id="about instructions that are not there"),
        pytest.param(0.99, True, True, 1, id="about instructions that are there"),
    ],
)
def test_a_judged_ratio_that_falls_short_fails_the_run(value, needs, has, code):
    results = judged.Results(matrix_instructions=has)
    results.add("well above", (9.0, 9.0, 9.0), 1.0)
    # The median decides, not the best pair.
    results.add("this one", (value, 0.0, 9.0), 1.0, needs_matrix_instructions=needs)
    assert results.exit_code() == code


def test_a_run_without_rows_is_no_success():
    assert judged.Results(matrix_instructions=False).exit_code() == 1


@pytest.mark.parametrize(
    ("text", "has"),
    [
        pytest.param(AMX, True, id="AMX"),
        pytest.param(NO_AMX, False, id="AVX-512 with dot products of bfloat16"),
        pytest.param("flags : amx_int8 amx_tile\n", False, id="AMX for integers alone"),
        pytest.param("Features\t: fp asimd bf16 i8mm\n", True, id="ARM's BFMMLA"),
        pytest.param("Features\t: fp asimd i8mm\n", False, id="ARM for integers alone"),
        pytest.param("Features\t: fp bf16 sme\n", True, id="ARM's SME"),
        pytest.param("model name : amx_bf16\n", False, id="a name that looks like it"),
        pytest.param("", False, id="a system that does not tell"),
    ],
)
def test_matrix_instructions_are_told_by_the_flags(text, has):
    assert judged.has_matrix_instructions(text) is has


def test_ratios_are_of_pairs_in_their_order():
    # The ratio of medians would be 2.
    assert judged.ratio([2.0, 40.0, 3.0], [2.0, 10.0, 1.0]) == (3.0, 1.0, 4.0)


def test_one_table_is_filled_by_all_parts_and_written_after_each(monkeypatch, tmp_path):
    path = tmp_path / "benchmarks.csv"

    def good(results):
        results.add("good", (2.0, 2.0, 2.0), 1.0)

    def bad(results):
        assert "good" in path.read_text(encoding="utf-8")
        results.add("bad", (0.5, 0.5, 0.5), 1.0)

    monkeypatch.setattr(all_benchmarks, "PARTS", {"good": good, "bad": bad})
    monkeypatch.setattr(all_benchmarks.torch, "set_num_threads", lambda count: None)
    assert all_benchmarks.main([], path) == 1
    assert [line.split(",")[0] for line in path.read_text(encoding="utf-8").splitlines()] == [
        "name",
        "good",
        "bad",
    ]
    assert all_benchmarks.main(["good"], path) == 0
    assert all_benchmarks.main(["god"], path) == 2


def test_every_benchmark_of_the_folder_is_a_part():
    folder = all_benchmarks.Path(all_benchmarks.__file__).parent
    scripts = {
        path.stem for path in folder.glob("*.py") if "\ndef cases(results" in path.read_text()
    }
    assert scripts == set(all_benchmarks.PARTS)
