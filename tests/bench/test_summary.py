"""The row of the table from records written by hand, against columns computed by hand."""

import dataclasses

import pytest

from bench import columns
from bench.costs import Rates, bytes_moved, flops
from bench.meters.clock import Timing
from bench.meters.energy import Energy
from bench.promise import Machine
from bench.schema import BatchRecord, Difference, Leg, Speculation
from bench.summary import summarise as _summarise
from methods.engine.ledger import Sums, Traffic

# Rates of a device that does 10 FLOPs while it reads a byte.
MACHINE = Machine("float32", Rates(flops_per_s=1e9, bytes_per_s=1e8))
# Statistics of a slot error rate: errors and wanted slots of each row.
SCORE = "slot_error_rate"


def summarise(batches, shapes, scores, **more):
    return _summarise(batches, shapes, scores, **{"machine": MACHINE, "margin": 0.01} | more)


def _leg(ids, layers=None, timings=(), slots=None, mlp=(10, 8), **more):
    executed, required = mlp
    slots = slots or [[0.0, 2.0] for _ in ids]
    return Leg(
        ids=ids,
        texts=["" for _ in ids],
        layers=layers or [[4 for _ in row] for row in ids],
        statistics={SCORE: slots},
        scores={SCORE: [errors / wanted for errors, wanted in slots]},
        timings=[Timing(*timing) for timing in timings],
        rounds=max(map(len, ids)),
        prompt_executed=Sums(mlp_positions=1000),
        decode_executed=Sums(mlp_positions=executed, head_positions=executed),
        decode_required=Sums(mlp_positions=required, head_positions=required),
        decode_traffic=Traffic(mlp_calls=executed, head_calls=executed, keys_read=7 * executed),
        **more,
    )


def _batches(*legs_of_batches):
    return [
        BatchRecord(
            index=index,
            example_ids=[f"{index}.{row}" for row in range(len(legs["method"].ids))],
            prompt_tokens=[5 for _ in legs["method"].ids],
            legs=legs,
            order=[],
        )
        for index, legs in enumerate(legs_of_batches)
    ]


@pytest.fixture(scope="module")
def shape(tiny_shape):
    return tiny_shape("an OPT")


@pytest.fixture(scope="module")
def paired():
    """Two timed batches, of two rows and one, and one that was decoded for quality only."""
    return _batches(
        {
            # Two passes: TTFT 0.2 s and decode time 0.5 s on average.
            "method": _leg(
                [[5, 6, 7], [5, 2]],
                [[4, 2, 2], [4, 3]],
                [(0.1, 0.4), (0.3, 0.6)],
                [[1.0, 2.0], [0.0, 4.0]],
                (10, 8),
            ),
            "baseline": _leg(
                [[5, 6, 7], [5, 6]], None, [(0.2, 1.0)] * 2, [[1.0, 2.0], [1.0, 4.0]], (20, 16)
            ),
        },
        {
            "method": _leg(
                [[5, 6, 7, 8, 9]], [[4, 1, 1, 1, 1]], [(0.4, 0.5)] * 2, [[2.0, 3.0]], (5, 4)
            ),
            "baseline": _leg([[5, 6, 7, 8]], None, [(0.4, 1.5)] * 2, [[0.0, 3.0]], (20, 16)),
        },
        {
            "method": _leg([[9, 2]], [[4, 4]], (), [[0.0, 1.0]], (1, 1)),
            "baseline": _leg([[9, 2]], None, (), [[0.0, 1.0]], (6, 4)),
        },
    )


@pytest.fixture(scope="module")
def row(paired, shape):
    shapes = {"method": shape, "baseline": shape}
    return summarise(paired, shapes, [SCORE], own_reference="baseline")


def test_tokens_and_examples_are_of_all_batches(row):
    # 3 + 2, 5, and 2 kept tokens of 2 + 1 + 1 rows.
    assert (row["tokens"], row["examples"]) == (12, 4)


def test_layers_per_token_leave_out_the_prompts_token(row):
    # (2 + 2 + 3) + (1 + 1 + 1 + 1) + 4 layers for (2 + 1) + 4 + 1 decode tokens.
    assert row["layers_per_token"] == 15 / 8


def test_decode_tokens_per_second_are_of_timed_batches_repeats_averaged(row):
    # 3 + 4 decode tokens in 0.5 + 0.5 s.
    assert row["decode_tokens_per_s"] == pytest.approx(7.0)


def test_ttft_is_the_median_over_timed_batches(row):
    assert row["ttft_s"] == pytest.approx((0.2 + 0.4) / 2)


def test_tpot_is_by_the_longest_row_of_each_batch(row):
    # 0.5 s for 2 tokens, 0.5 s for 4: the median of 0.25 and 0.125.
    assert row["tpot_s"] == pytest.approx((0.25 + 0.125) / 2)


def test_speedup_is_decode_time_per_kept_token_of_both_legs(row):
    # Baseline: 1.0 + 1.5 s for (2 + 1) + 3 decode tokens. Method: 1 s for 7.
    assert row["speedup"] == pytest.approx((2.5 / 6) / (1.0 / 7))
    assert row["speedup_low"] is row["speedup_high"] is None


def test_speedup_total_has_the_prompt_pass_and_its_token_in_both_legs(row):
    # Baseline: 1.2 + 1.9 s for 5 + 4 tokens. Method: 0.7 + 0.9 s for 5 + 5.
    assert row["speedup_total"] == pytest.approx((3.1 / 9) / (1.6 / 10))


def test_flops_per_token_are_of_the_decode_phase_of_all_batches(row, shape):
    # 16 executed and 13 required positions for 8 decode tokens; of the baseline 46 and 36 for 7.
    def cost(positions):
        return flops(Sums(mlp_positions=positions, head_positions=positions), shape)

    assert row["flops_executed_per_token"] == cost(16) / 8
    assert row["flops_required_per_token"] == cost(13) / 8
    assert row["flops_executed_ratio"] == pytest.approx((16 / 8) / (46 / 7))
    assert row["flops_required_ratio"] == pytest.approx((13 / 8) / (36 / 7))


def test_flops_ratio_takes_each_legs_own_shape(paired, shape, tiny_shape):
    wider = tiny_shape("an OPT", ffn_width=160, vocab_size=122)
    found = summarise(paired, {"method": shape, "baseline": wider}, [])
    # Twice the MLP and twice the head: each position of the baseline costs twice as much.
    assert found["flops_executed_ratio"] == pytest.approx((16 / 8) / (2 * 46 / 7))


def test_identical_share_is_of_examples_with_all_ids_equal(row):
    # The first row of the first batch and that of the last one.
    assert row["identical_to_dense"] == 2 / 4


def test_identical_share_is_against_the_own_dense_leg_where_that_ran(paired, shape):
    with_own = _batches(
        *(batch.legs | {"own_dense": _leg(batch.legs["method"].ids)} for batch in paired)
    )
    shapes = dict.fromkeys(("method", "baseline", "own_dense"), shape)
    found = summarise(with_own, shapes, [SCORE], own_reference="own_dense")
    assert found["identical_to_dense"] == 1.0
    assert found["speedup"] == pytest.approx((2.5 / 6) / (1.0 / 7))


def test_scores_are_of_summed_statistics_and_their_difference_is_paired(row):
    # Errors 1 + 0 + 2 + 0 of 2 + 4 + 3 + 1 slots; of the baseline 1 + 1 + 0 + 0.
    assert row[f"score.{SCORE}"] == pytest.approx(3 / 10)
    assert row[f"dense.{SCORE}"] == pytest.approx(2 / 10)
    assert row[f"diff.{SCORE}"] == pytest.approx(1 / 10)
    for name in (f"score.{SCORE}", f"diff.{SCORE}"):
        assert row[f"{name}.low"] <= row[name] <= row[f"{name}.high"]


def test_speedup_has_an_interval_from_five_timed_batches_on(paired, shape):
    shapes = {"method": shape, "baseline": shape}
    found = summarise(paired[:2] * 3, shapes, [])
    assert found["speedup_low"] < found["speedup"] < found["speedup_high"]


def test_a_method_that_ran_twice_has_speedup_one_and_differences_of_zero(paired, shape):
    twice = _batches(*({"method": b.legs["method"], "baseline": b.legs["method"]} for b in paired))
    shapes = {"method": shape, "baseline": shape}
    found = summarise(twice, shapes, [SCORE], own_reference="baseline")
    ones = ("speedup", "speedup_total", "flops_executed_ratio", "flops_required_ratio")
    assert [found[name] for name in ones] == pytest.approx([1.0] * 4)
    assert found["identical_to_dense"] == 1.0
    zeros = [found[f"diff.{SCORE}{end}"] for end in ("", ".low", ".high")]
    assert zeros == [0.0, 0.0, 0.0]


def test_acceptance_is_of_all_drafts_together(shape):
    batches = _batches(
        {"method": _leg([[5, 6, 7], [5, 6]], speculation=Speculation(2, 10, 3, [], []))},
        {"method": _leg([[5, 6]], speculation=Speculation(1, 10, 9, [], []))},
    )
    found = summarise(batches, {"method": shape}, [])
    assert found["acceptance_rate"] == 12 / 20
    # 2 + 1 + 1 decode tokens of 3 verifications.
    assert found["tokens_per_verification"] == 4 / 3
    assert found["drafted_per_verification"] == 20 / 3


def test_a_method_without_drafts_has_no_acceptance(row):
    assert row.get("acceptance_rate") is None


def test_a_method_that_never_drafted_a_token_has_no_acceptance(shape):
    batches = _batches({"method": _leg([[5, 6]], speculation=Speculation(1, 0, 0, [], []))})
    assert summarise(batches, {"method": shape}, [])["acceptance_rate"] is None


def test_rows_that_end_with_the_prompts_token_give_nulls(shape):
    leg = _leg([[2], [2]], timings=[(0.2, 0.001)], mlp=(0, 0))
    batches = _batches({"method": leg, "baseline": leg})
    shapes = {"method": shape, "baseline": shape}
    found = summarise(batches, shapes, [SCORE], own_reference="baseline")
    unknown = {
        *("layers_per_token", "decode_tokens_per_s", "tpot_s"),
        *("speedup", "speedup_low", "speedup_high"),
        *("flops_executed_per_token", "flops_required_per_token"),
        *("flops_executed_ratio", "flops_required_ratio"),
    }
    assert unknown <= {name for name, value in found.items() if value is None}
    assert (found["tokens"], found["ttft_s"], found["speedup_total"]) == (2, 0.2, 1.0)


def test_a_batch_of_first_tokens_alone_does_not_hide_the_others(shape):
    batches = _batches(
        {"method": _leg([[2], [2]], timings=[(0.2, 0.0)])},
        {"method": _leg([[5, 6, 2]], timings=[(0.2, 0.5)])},
    )
    found = summarise(batches, {"method": shape}, [])
    assert (found["tpot_s"], found["decode_tokens_per_s"]) == (0.25, 4.0)


def test_times_are_null_where_no_batch_was_timed(shape):
    batches = _batches({"method": _leg([[5, 6]]), "baseline": _leg([[5, 6]])})
    found = summarise(batches, {"method": shape, "baseline": shape}, [])
    times = ("decode_tokens_per_s", "ttft_s", "tpot_s", "speedup", "speedup_low", "speedup_total")
    assert [found[name] for name in times] == [None] * 6
    assert found["flops_executed_ratio"] == 1.0


def test_dense_alone_is_its_own_dense_and_has_no_ratio(paired, shape):
    alone = _batches(*({"method": batch.legs["baseline"]} for batch in paired))
    found = summarise(alone, {"method": shape}, [SCORE], dense_alone=True)
    assert found[f"dense.{SCORE}"] == found[f"score.{SCORE}"] == pytest.approx(2 / 10)
    assert found.get("flops_executed_ratio") is found.get("flops_required_ratio") is None
    never = {"speedup", "speedup_total", "identical_to_dense", f"diff.{SCORE}"}
    assert {name for name in never if found.get(name) is not None} == set()


def test_a_method_without_a_baseline_has_no_dense_and_no_ratio(paired, shape):
    alone = _batches(*({"method": batch.legs["method"]} for batch in paired))
    found = summarise(alone, {"method": shape}, [SCORE])
    assert found[f"score.{SCORE}"] == pytest.approx(3 / 10)
    assert found["decode_tokens_per_s"] == pytest.approx(7.0)
    never = {"speedup", "flops_executed_ratio", "identical_to_dense", f"dense.{SCORE}"}
    assert {name for name in never if found.get(name) is not None} == set()


def test_a_score_that_is_not_defined_is_null_and_so_is_its_difference(shape):
    slots = [[0.0, 0.0], [0.0, 0.0]]
    leg = _leg([[5, 6], [5, 6]], slots=[[0.0, 1.0]] * 2)
    leg.statistics[SCORE][:] = slots
    found = summarise(
        _batches({"method": leg, "baseline": leg}), {"method": shape, "baseline": shape}, [SCORE]
    )
    ends = ("", ".low", ".high")
    assert [found[f"{kind}.{SCORE}{end}"] for kind in ("score", "diff") for end in ends] == [
        None
    ] * 6


def test_every_column_that_is_summarised_is_a_column_of_the_table(row):
    assert set(row) <= set(columns.names([SCORE]))


def test_bytes_are_of_calls_whatever_rows_they_had(row, shape):
    # 16 calls of MLP and head in all for 8 decode tokens; of the baseline 46 for 7.
    moved = bytes_moved(Traffic(mlp_calls=1, head_calls=1, keys_read=7), shape, "float32")
    assert row["bytes_per_token"] == moved * 16 / 8
    assert row["bytes_ratio"] == pytest.approx((16 / 8) / (46 / 7))
    executed = flops(Sums(mlp_positions=1, head_positions=1), shape)
    assert row["intensity_flops_per_byte"] == pytest.approx(executed / moved)


def test_promises_are_of_the_timed_batches_alone(row):
    # 15 positions for 7 tokens of the method, 40 for 6 of the baseline.
    promised = (40 / 6) / (15 / 7)
    for by in ("flops", "bytes", "roofline"):
        assert row[f"speedup_promised_by_{by}"] == pytest.approx(promised)
    assert row["lost_to_overhead"] == pytest.approx(1 - row["speedup"] / promised)
    assert row.get("speedup_promised_by_model") is None


def test_the_roofline_is_the_longer_of_products_and_bytes(row, shape):
    moved = bytes_moved(Traffic(mlp_calls=15, head_calls=15, keys_read=105), shape, "float32")
    done = flops(Sums(mlp_positions=15, head_positions=15), shape)
    assert moved / 1e8 > done / 1e9
    # 0.5 s of each timed batch.
    assert row["roofline_fraction"] == pytest.approx(moved / 1e8 / 1.0)


@pytest.mark.parametrize("rates", [Rates(), Rates(1e9), Rates(bytes_per_s=1e8)])
def test_without_a_rate_there_is_no_roofline_and_no_loss(paired, shape, rates):
    shapes = {"method": shape, "baseline": shape}
    found = summarise(paired, shapes, [], machine=Machine("float32", rates))
    empty = ("roofline_fraction", "dense.roofline_fraction", "lost_to_overhead")
    assert [found[name] for name in empty] == [None] * 3
    assert found["speedup_promised_by_roofline"] is None
    assert found["speedup_promised_by_bytes"] is not None


def test_bytes_are_unknown_if_one_record_does_not_say(paired, shape):
    silent = dataclasses.replace(paired[2].legs["method"], decode_traffic=None)
    batches = [*paired[:2], dataclasses.replace(paired[2], legs={"method": silent})]
    batches = [dataclasses.replace(b, legs={"method": b.legs["method"]}) for b in batches]
    found = summarise(batches, {"method": shape}, [])
    assert found["bytes_per_token"] is found["intensity_flops_per_byte"] is None
    assert found["flops_executed_per_token"] is not None


def test_percentiles_are_over_passes_and_withheld_where_they_are_few(shape):
    def found(passes):
        timings = [(0.1 * (index + 1), 2.0) for index in range(passes)]
        return summarise(
            _batches({"method": _leg([[5, 6, 7]], timings=timings)}), {"method": shape}, []
        )

    few, some, many = found(19), found(20), found(100)
    assert (few["timed_passes"], few["ttft_p95_s"], few["tpot_p95_s"]) == (19, None, None)
    assert some["ttft_p95_s"] == pytest.approx(0.1 * (1 + 0.95 * 19))
    assert some["tpot_p95_s"] == pytest.approx(1.0)
    assert some["ttft_p99_s"] is None
    assert many["ttft_p99_s"] == pytest.approx(0.1 * (1 + 0.99 * 99))


def test_times_of_rounds_leave_out_the_prompts(shape):
    leg = _leg([[5, 6, 7]], timings=[(0.1, 2.0)], round_s=[9.0, 1.0, 3.0])
    found = summarise(_batches({"method": leg}), {"method": shape}, [])
    assert found["round_s"] == pytest.approx(2.0)


def test_peaks_are_the_highest_batch_and_unknown_if_one_is(shape):
    legs = [_leg([[5, 6]], peak_memory_bytes=peak, peak_rss_bytes=peak) for peak in (3, 7, 5)]
    found = summarise(_batches(*({"method": leg} for leg in legs)), {"method": shape}, [])
    assert found["peak_memory_bytes"] == found["peak_rss_bytes"] == 7
    unknown = [*legs, _leg([[5, 6]])]
    found = summarise(_batches(*({"method": leg} for leg in unknown)), {"method": shape}, [])
    assert found["peak_memory_bytes"] is found["peak_rss_bytes"] is None


def test_energy_is_of_a_pass_and_each_kept_token(shape):
    energies = [Energy(joules=60.0, seconds=2.0, passes=10, counter="planted"), None]
    legs = [_leg([[5, 6, 7]], energy=energy) for energy in energies]
    found = summarise(_batches(*({"method": leg} for leg in legs)), {"method": shape}, [])
    assert found["joules_per_token"] == pytest.approx(2.0)
    assert found["dense.joules_per_token"] is None


def test_a_difference_is_judged_at_the_margin_in_the_scores_unit(paired, shape):
    shapes = {"method": shape, "baseline": shape}
    wide = summarise(paired, shapes, [SCORE], margin=5.0)
    # Of a fraction, whose scale is 1 wide. Lower is better: far more errors than 5 a slot.
    assert wide[f"diff.{SCORE}.margin"] == 5.0
    assert wide[f"diff.{SCORE}.verdict"] == "non_inferior"
    narrow = summarise(paired, shapes, [SCORE], margin=1e-9)
    assert narrow[f"diff.{SCORE}.verdict"] == "undecided"


def test_differences_beyond_ties_are_told_apart_from_ties(shape):
    gaps = [Difference("a", 3, 2e-5), Difference("b", 0, 0.3)]
    batches = _batches({"method": _leg([[5, 6]])}, {"method": _leg([[5, 6]])})
    looked = [
        dataclasses.replace(batch, differences=found)
        for batch, found in zip(batches, (gaps, []), strict=True)
    ]
    assert summarise(looked, {"method": shape}, [])["differences_beyond_ties"] == 1
    found = summarise([looked[0], batches[1]], {"method": shape}, [])
    assert found["differences_beyond_ties"] is None
