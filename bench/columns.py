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
    Column("examples", "examples", "examples decoded"),
    Column("tokens", "tokens", "kept tokens of the method leg, first pass, the prompt's included"),
    Column("layers_per_token", "layers", "layers run for live rows / kept decode tokens"),
    Column("decode_tokens_per_s", "tokens/s", "kept decode tokens / decode time, timed batches"),
    Column("ttft_s", "s", "time to first token: median over timed batches"),
    Column("tpot_s", "s", "decode time / decode tokens of the longest row, median over batches"),
    Column("speedup", "ratio", "decode time per kept token, baseline / method, totals"),
    Column("speedup_low", "ratio", "lower end of the 95 % jackknife-t interval"),
    Column("speedup_high", "ratio", "upper end"),
    Column("speedup_total", "ratio", "the same with the prompt pass in both times"),
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
    Column("peak_memory_bytes", "bytes", "peak allocated on the device over the run"),
    Column("bytes_per_token", "bytes", "bytes moved in decoding / kept decode tokens"),
    Column("roofline_fraction", "fraction", "roofline time / measured decode time"),
    Column("dense.roofline_fraction", "fraction", "the same of the baseline"),
)

SCORE_COLUMNS: tuple[Column, ...] = (
    Column("score.NAME", "of the score", "corpus score of the method leg"),
    Column("score.NAME.low", "of the score", "lower end of the 95 % bootstrap interval"),
    Column("score.NAME.high", "of the score", "upper end"),
    Column("dense.NAME", "of the score", "the baseline's; of dense alone, its own"),
    Column("diff.NAME", "of the score", "method - baseline"),
    Column("diff.NAME.low", "of the score", "lower end of the paired 95 % bootstrap interval"),
    Column("diff.NAME.high", "of the score", "upper end"),
)


def names(scores: list[str]) -> list[str]:
    """All column names in order, for the given scores."""
    fixed = [column.name for column in COLUMNS]
    return fixed + [c.name.replace("NAME", score) for score in scores for c in SCORE_COLUMNS]
