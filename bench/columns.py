"""The columns of the table of runs: order, unit and meaning, in one place.

Apart, because the table, the documentation and the checks of units all read this list. Free of
torch. Not here: how a value is computed (``summary.py``). Empty means not known or not
applicable, never 0.
"""

from typing import NamedTuple


class Column(NamedTuple):
    """One column."""

    name: str
    unit: str
    meaning: str


COLUMNS: tuple[Column, ...] = (
    Column("run_id", "", "hash of all that bears on a number"),
    Column("status", "", "done, running, stopped (resumable) or failed"),
    Column("method", "", "decoding method"),
    Column("setting", "", "settings that differ from the method's conf, key=value joined by ;"),
    Column("model", "", "name of the model config"),
    Column("checkpoint", "", "folder or hub id of the method's weights; random:SEED without one"),
    Column("task", "", "name of the task"),
    Column("gpu", "", "device profile"),
    Column("dtype", "", "of weights, residual stream and cache"),
    Column("length", "", "stop rule: until_eos or fixed"),
    Column("seed", "", "seed of the run"),
    Column("attempt", "", "number of the attempt shown"),
    Column("batch_size", "rows", "rows of a batch"),
    Column("examples", "examples", "distinct examples decoded"),
    Column("n_truncated", "examples", "of them, those whose prompt was cut to fit"),
    Column("tokens", "tokens", "kept tokens of the method leg, first pass, the prompt's included"),
    Column("layers_per_token", "layers", "layers run for live rows / kept decode tokens"),
    Column("decode_tokens_per_s", "tokens/s", "kept decode tokens / decode time, timed batches"),
    Column("timed_passes", "passes", "passes of the method leg that percentiles are over"),
    Column("ttft_s", "s", "time to first token: median over timed batches"),
    Column("ttft_p95_s", "s", "its 95th percentile over passes; empty under 20"),
    Column("ttft_p99_s", "s", "its 99th percentile; empty under 100"),
    Column("tpot_s", "s", "decode time / decode tokens of the longest row, median over batches"),
    Column("tpot_p95_s", "s", "its 95th percentile over passes; empty under 20"),
    Column("tpot_p99_s", "s", "its 99th percentile; empty under 100"),
    Column("round_s", "s", "time of a decode round, waited for: median; needs meter.profile=true"),
    Column("round_p95_s", "s", "its 95th percentile over rounds; empty under 20"),
    Column("round_p99_s", "s", "its 99th percentile; empty under 100"),
    Column("speedup", "ratio", "decode time per kept token, baseline / method, totals"),
    Column("speedup_low", "ratio", "lower end of the 95 % jackknife-t interval"),
    Column("speedup_high", "ratio", "upper end"),
    Column("speedup_total", "ratio", "the same with the prompt pass in both times"),
    Column("speedup_drift", "ratio", "speed-up of the later half of the batches / of the earlier"),
    Column("speedup_promised_by_flops", "ratio", "executed FLOPs per token, baseline / method"),
    Column("speedup_promised_by_bytes", "ratio", "bytes moved per token, baseline / method"),
    Column("speedup_promised_by_roofline", "ratio", "roofline time per token, baseline / method"),
    Column("speedup_promised_by_model", "ratio", "by the method's latency model, if it has one"),
    Column("lost_to_overhead", "fraction", "1 - speedup / the one promised by the roofline"),
    Column("flops_executed_per_token", "FLOPs", "decode FLOPs that ran / kept decode tokens"),
    Column("flops_required_per_token", "FLOPs", "the part that live rows asked for / same tokens"),
    Column("flops_executed_ratio", "ratio", "method / baseline"),
    Column("flops_required_ratio", "ratio", "method / baseline"),
    Column(
        "identical_to_dense", "fraction", "examples with equal ids, against dense on own weights"
    ),
    Column("differences_beyond_ties", "examples", "differences with a logit gap above 1e-4"),
    Column("acceptance_rate", "fraction", "accepted / drafted tokens"),
    Column("tokens_per_verification", "tokens", "kept decode tokens / verifications"),
    Column("drafted_per_verification", "tokens", "drafted tokens / verifications"),
    Column("bytes_per_token", "bytes", "bytes moved in decoding / kept decode tokens"),
    Column("bytes_ratio", "ratio", "method / baseline"),
    Column("intensity_flops_per_byte", "FLOPs/byte", "executed FLOPs / bytes moved, in decoding"),
    Column("roofline_fraction", "fraction", "roofline time / measured decode time"),
    Column("dense.roofline_fraction", "fraction", "the same of the baseline"),
    Column("weights_bytes", "bytes", "the method leg's weights, as held"),
    Column("kv_cache_bytes", "bytes", "keys and values of the largest batch at its limit"),
    Column("peak_memory_bytes", "bytes", "allocated on the device at most, method leg"),
    Column("dense.peak_memory_bytes", "bytes", "the same in the baseline leg"),
    Column("peak_rss_bytes", "bytes", "of the process at most, all weights held, method leg"),
    Column("dense.peak_rss_bytes", "bytes", "the same in the baseline leg"),
    Column("joules_per_token", "joules", "prompt pass included; needs meter.energy=true"),
    Column("dense.joules_per_token", "joules", "the same of the baseline"),
)

SCORE_COLUMNS: tuple[Column, ...] = (
    Column("score.NAME", "of the score", "corpus score of the method leg"),
    Column("score.NAME.low", "of the score", "lower end of the 95 % bootstrap interval"),
    Column("score.NAME.high", "of the score", "upper end"),
    Column("dense.NAME", "of the score", "the baseline's; of dense alone, its own"),
    Column("diff.NAME", "of the score", "method - baseline"),
    Column("diff.NAME.low", "of the score", "lower end of the paired 95 % bootstrap interval"),
    Column("diff.NAME.high", "of the score", "upper end"),
    Column("diff.NAME.margin", "of the score", "what may be lost and still count as no worse"),
    Column("diff.NAME.verdict", "", "non_inferior, inferior or undecided at that margin"),
)


def names(scores: list[str]) -> list[str]:
    """All column names in order, for the given scores."""
    fixed = [column.name for column in COLUMNS]
    return fixed + [c.name.replace("NAME", score) for score in scores for c in SCORE_COLUMNS]
