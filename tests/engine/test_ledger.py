"""The ledger's FLOPs: against torch's own counter, against sums by hand, and row by row."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.costs import bytes_moved, flops
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.ledger import Extent, Ledger, Sums


def _counted(run, backend=SDPBackend.MATH):
    with torch.no_grad(), sdpa_kernel(backend), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


class Bench:
    """A model with a filled cache; each ``charged`` call is one round."""

    def __init__(self, transformer, rows, room=8):
        self.model = InferenceModel(transformer, Options(packed=False))
        self.rows, self.prompts = rows, Prompts.of(rows)
        self.cache = self.model.new_cache(self.prompts, room)

    def prompt_pass(self):
        self.model.head(self.model.prefill(self.prompts, self.cache))

    def step(self, step=0, layers=None, new=1):
        at = torch.tensor(self.prompts.lengths)[:, None] + step + torch.arange(new)
        positions = self.model.at(self.cache, at, max(self.prompts.lengths) + step)
        x = self.model.embed(torch.full(at.shape, 5), positions)
        for layer in range(self.model.shape.num_layers) if layers is None else layers:
            x = self.model.block(layer, x, positions, self.cache)
        return self.model.head(x, positions)

    def unequal_step(self):
        at = torch.tensor(self.prompts.lengths)[:, None] + torch.arange(3)
        ends = [length + 3 for length in self.prompts.lengths]
        positions = self.model.at_unequal(self.cache, at, ends)
        x = self.model.embed(torch.full(at.shape, 5), positions)
        for layer in range(self.model.shape.num_layers):
            x = self.model.block(layer, x, positions, self.cache)
        return self.model.head(x[:, 1:2])

    def branches(self):
        at = torch.tensor(self.prompts.lengths)[:, None]
        positions = self.model.at(self.cache, at, max(self.prompts.lengths))
        x = self.model.embed(torch.full(at.shape, 5), positions)
        x = self.model.block(0, x, positions, self.cache, mlp=False)
        x = self.model.block(1, x, positions, self.cache, attention=False)
        self.model.write_kv(2, x, positions, self.cache)
        self.model.write_kv(3, x, positions, self.cache)

    def charged(self, run, backend=SDPBackend.MATH):
        """FLOPs of one run by torch's counter and by the ledger."""
        counted = _counted(run, backend)
        self.model.ledger.close_round()
        return counted, flops(self.model.ledger.executed()[-1], self.model.shape)


@pytest.fixture
def ledger_of(tiny_transformer, make_prompts):
    """``ledger_of(name, lengths)``: a Bench over random prompts."""
    return lambda name, lengths: Bench(tiny_transformer(name), make_prompts(lengths))


BATCHES = {"one row": [9], "rows of equal length": [6, 6, 6], "a ragged batch": [3, 11, 1, 8]}


@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_flops_equal_those_of_torchs_counter(shape_name, ledger_of, lengths):
    bench = ledger_of(shape_name, lengths)
    runs = [
        bench.prompt_pass,
        bench.step,
        lambda: bench.step(1, layers=[0, 3]),
        lambda: bench.step(2, layers=[0, 3], new=2),
        bench.branches,
        bench.unequal_step,
    ]
    found = [bench.charged(run) for run in runs]
    assert [ours for _, ours in found] == [counted for counted, _ in found]
    assert len({ours for _, ours in found}) == len(runs)


def test_flops_of_an_early_exit_from_the_prompt_equal_those_of_torchs_counter(
    shape_name, ledger_of
):
    bench = ledger_of(shape_name, [3, 11])
    counted, ours = bench.charged(
        lambda: bench.model.head(bench.model.prefill(bench.prompts, bench.cache, layers=2))
    )
    assert ours == counted


def test_flops_stay_the_same_where_fused_attention_hides_from_torchs_counter(shape_name, ledger_of):
    plain, fused = ledger_of(shape_name, [3, 11]), ledger_of(shape_name, [3, 11])
    for name in ("prompt_pass", "step"):
        counted, expected = plain.charged(getattr(plain, name))
        seen, ours = fused.charged(getattr(fused, name), SDPBackend.FLASH_ATTENTION)
        assert ours == expected == counted
        # The very attention: 2 products x 2 FLOPs x query width, for each pair.
        pairs = fused.model.ledger.executed()[-1].attended_pairs
        assert counted - seen in (0, pairs * 4 * fused.model.shape.query_width)


def test_flops_of_an_opt_by_hand(tiny_transformer):
    # 2 layers of width 32, 4 heads of 8, MLP of 80, 61 rows in the head; one row.
    bench = Bench(tiny_transformer("an OPT", num_layers=2), [[2, 5, 6, 7, 8]])
    # Prompt of 5. A layer: q, k, v, out 4 x 2 x 32 x 32 = 8 192 a token, MLP 2 x 2 x 32 x 80 =
    # 10 240 a token, attention 4 x 32 = 128 a pair: 5 x 18 432 + 25 x 128 = 95 360. Two layers
    # 190 720; the head at the last position only, 2 x 32 x 61 = 3 904.
    assert bench.charged(bench.prompt_pass)[1] == 190_720 + 3_904
    # One step: 6 keys. A layer: 18 432 + 6 x 128 = 19 200. Two layers and the head.
    assert bench.charged(bench.step)[1] == 38_400 + 3_904
    # Three tokens at once, logits at all three, 9 keys for each: 3 x 18 432 + 27 x 128 = 58 752
    # a layer; two layers and three times the head.
    assert bench.charged(lambda: bench.step(1, new=3))[1] == 117_504 + 3 * 3_904


def test_flops_of_a_llama_with_grouped_heads_by_hand(tiny_transformer):
    # 3 layers of width 32, 4 query heads of 8, 2 key heads, MLP of 44 with gate, 61 rows.
    bench = Bench(tiny_transformer("a Llama with grouped heads", num_layers=3), [[2, 5, 6], [2]])
    # A layer: q and out 2 x 2 x 32 x 32 = 4 096, k and v 2 x 2 x 32 x 16 = 2 048, MLP
    # 3 x 2 x 32 x 44 = 8 448: 14 592 a token; 128 a pair. Two rows of 3, one of them padded:
    # 6 x 14 592 + 18 x 128 = 89 856. Three layers; the head for each row, 2 x 3 904.
    assert bench.charged(bench.prompt_pass)[1] == 269_568 + 7_808
    # One step without the middle layer: 2 x 14 592 + 2 x 4 x 128 = 30 208, twice.
    assert bench.charged(lambda: bench.step(layers=[0, 2]))[1] == 60_416 + 7_808
    # What the two rows need of the same: 1 token each, 4 and 2 keys: 29 184 + 768, twice.
    required = bench.model.ledger.required([[0, 1]] * 2, [None] * 2)
    assert flops(required[1], bench.model.shape) == 59_904 + 7_808


def _required(bench, live=None, needed=None):
    ledger = bench.model.ledger
    rounds, rows = len(ledger.round_ends), range(len(bench.rows))
    return ledger.required(live or [list(rows)] * rounds, needed or [None] * rounds)


@torch.no_grad()
def _decode(bench):
    bench.prompt_pass()
    bench.model.ledger.close_round()
    bench.step()
    bench.model.ledger.close_round()
    bench.step(1, layers=[0, 2, 3])
    bench.model.ledger.close_round()
    return bench


def test_a_single_row_without_waste_requires_what_was_executed(shape_name, ledger_of):
    bench = _decode(ledger_of(shape_name, [9]))
    assert _required(bench) == bench.model.ledger.executed()


def test_a_ragged_batch_requires_the_sum_of_its_rows_run_singly(
    shape_name, tiny_transformer, make_prompts
):
    transformer, rows = tiny_transformer(shape_name), make_prompts([3, 11, 1, 8])
    batch = _decode(Bench(transformer, rows))
    singles = [_decode(Bench(transformer, [row])).model.ledger.executed() for row in rows]
    expected = [sum(sums, Sums()) for sums in zip(*singles, strict=True)]
    assert _required(batch) == expected
    for required, executed in zip(expected, batch.model.ledger.executed(), strict=True):
        assert flops(required, transformer.shape) < flops(executed, transformer.shape)


def test_only_live_rows_are_required(ledger_of):
    bench = _decode(ledger_of("an OPT", [3, 11]))
    everything = _required(bench)
    row_0, row_1 = (_required(bench, live=[[row]] * 3) for row in (0, 1))
    assert [one + other for one, other in zip(row_0, row_1, strict=True)] == everything
    assert _required(bench, live=[[0, 1], [0], []]) == [everything[0], row_0[1], Sums()]


def test_only_the_layers_that_a_row_asked_for_are_required(ledger_of):
    bench = _decode(ledger_of("an OPT", [3, 11]))
    everything = _required(bench)
    limited = _required(bench, needed=[None, [1, 4], [0, 2]])
    assert limited[0] == everything[0]
    # Step 1: row 0 one layer with its 4 keys, row 1 all four with its 12.
    assert limited[1] == Sums(5, 1 * 4 + 4 * 12, 5, 0, 2, 2)
    # Step 2: row 0 none, row 1 two of the three that ran, with 13 keys.
    assert limited[2] == Sums(2, 2 * 13, 2, 0, 2, 2)
    assert _required(bench, needed=[None, [9, 9], [3, 3]]) == everything


def test_a_layer_in_two_parts_counts_once_among_the_layers_asked_for():
    ledger, extent = Ledger(), Extent(1, 1, 5, None, (5,))
    for layer in range(2):
        ledger.charge("attention", layer, extent)
        ledger.charge("mlp", layer, extent)
    ledger.close_round()
    assert ledger.required([[0]], [[1]]) == [Sums(1, 5, 1)]
    assert ledger.required([[0]], [[2]]) == ledger.executed() == [Sums(2, 10, 2)]


def test_a_layer_of_one_part_counts_among_the_layers_asked_for():
    ledger, extent = Ledger(), Extent(1, 1, 5, None, (5,))
    for part, layer in (("attention", 0), ("mlp", 1), ("mlp", 2), ("block", 3)):
        ledger.charge(part, layer, extent)
    ledger.close_round()
    expected = [Sums(), Sums(1, 5), Sums(1, 5, 1), Sums(1, 5, 2), Sums(2, 10, 3)]
    assert [ledger.required([[0]], [[depth]])[0] for depth in range(5)] == expected


def test_required_never_exceeds_executed(shape_name, ledger_of):
    bench = ledger_of(shape_name, [3, 11, 1, 8])
    runs = [bench.prompt_pass, bench.step, bench.branches, bench.unequal_step]
    for run in runs:
        bench.charged(run)
    for required, executed in zip(_required(bench), bench.model.ledger.executed(), strict=True):
        assert flops(required, bench.model.shape) <= flops(executed, bench.model.shape)


def test_calls_belong_to_the_round_that_closes_after_them():
    ledger, extent = Ledger(), Extent(2, 1, 5, None, (5, 4))
    ledger.charge("embed", -1, extent)
    ledger.close_round()
    ledger.close_round()
    ledger.charge("block", 0, extent)
    ledger.charge("head", -1, extent)
    ledger.close_round()
    ledger.charge("head", -1, extent)
    assert [[part for part, _, _ in calls] for calls in ledger.rounds()] == [
        ["embed"],
        [],
        ["block", "head"],
    ]
    assert ledger.executed() == [Sums(embed_positions=2), Sums(), Sums(2, 10, 2, head_positions=2)]


# ---- bytes ----


def test_bytes_of_an_opt_by_hand(tiny_transformer):
    # Width 32, MLP of 80, 61 rows in the head, 2 of the 4 layers, one row of 5 prompt tokens.
    bench = Bench(tiny_transformer("an OPT"), [[2, 5, 6, 7, 8]])
    bench.charged(bench.prompt_pass)
    bench.charged(lambda: bench.step(layers=[0, 3]))
    # A layer reads 4 x 32 x 32 + 2 x 32 x 80 = 9 216 weights, 6 slots of a key and a value of 32
    # (384), and writes one (64). The head reads 61 x 32 = 1 952.
    elements = 2 * (9_216 + 384 + 64) + 1_952
    traffic = bench.model.ledger.traffic()[1]
    assert bytes_moved(traffic, bench.model.shape, "float32") == 4 * elements
    assert bytes_moved(traffic, bench.model.shape, "bfloat16") == 2 * elements


def test_bytes_of_a_llama_with_grouped_heads_by_hand(tiny_transformer):
    # Width 32, 4 query heads of 8, 2 key heads, MLP of 44 with gate, 3 layers; rows of 3 and 1.
    bench = Bench(tiny_transformer("a Llama with grouped heads", num_layers=3), [[2, 5, 6], [2]])
    bench.charged(bench.prompt_pass)
    bench.charged(lambda: bench.step(new=2))
    # A layer: 2 x 32 x 32 + 2 x 32 x 16 + 3 x 32 x 44 = 7 296 weights, whatever the rows; two rows
    # read 5 slots and write 2, of a key and a value of 16: 2 x (5 + 2) x 32 = 448.
    elements = 3 * (7_296 + 448) + 61 * 32
    traffic = bench.model.ledger.traffic()[1]
    assert bytes_moved(traffic, bench.model.shape, "float32") == 4 * elements


def test_bytes_of_single_branches_and_of_state_copying_by_hand(tiny_transformer):
    bench = Bench(tiny_transformer("an OPT"), [[2, 5, 6]])
    bench.charged(bench.prompt_pass)
    bench.charged(bench.branches)
    # Attention alone 4 096 + 4 slots read and 1 written; MLP alone 5 120; two layers of keys and
    # values alone 2 x 32 x 32 each, one slot written; no head.
    elements = (4_096 + (4 + 1) * 64) + 5_120 + 2 * (2_048 + 64)
    assert (
        bytes_moved(bench.model.ledger.traffic()[1], bench.model.shape, "float32") == 4 * elements
    )


def test_bytes_of_an_embedding_of_its_own_width_count_its_projections(tiny_transformer):
    name = "an OPT with norms behind and an embedding of its own width"
    bench = Bench(tiny_transformer(name), [[2, 5, 6]])
    bench.charged(bench.prompt_pass)
    bench.charged(lambda: bench.step(layers=[]))
    # In and out 20 x 32 each, the head 61 x 20.
    traffic = bench.model.ledger.traffic()[1]
    assert bytes_moved(traffic, bench.model.shape, "float32") == 4 * (2 * 640 + 1_220)


def test_weights_are_read_once_for_all_rows_and_keys_for_each(ledger_of):
    one, four = ledger_of("an OPT", [9]), ledger_of("an OPT", [9, 9, 9, 9])
    for bench in (one, four):
        bench.charged(bench.step)
    single, batch = (bench.model.ledger.traffic()[0] for bench in (one, four))
    assert batch.mlp_calls == single.mlp_calls == 4
    assert batch.keys_read == 4 * single.keys_read
    assert batch.keys_written == 4 * single.keys_written


def test_a_layer_that_runs_twice_is_counted_twice_whatever_a_method_says(ledger_of):
    bench = ledger_of("an OPT", [9])
    bench.charged(lambda: bench.step(0, layers=[0, 1, 2, 3]))
    bench.charged(lambda: bench.step(1, layers=[0, 0, 1, 2, 3]))
    (once, twice), (t_once, t_twice) = bench.model.ledger.executed(), bench.model.ledger.traffic()
    assert (once.mlp_positions, twice.mlp_positions) == (4, 5)
    assert (t_once.attention_calls, t_twice.attention_calls) == (4, 5)
    # What a method claims of its rows bounds what they required, never what ran.
    claimed = bench.model.ledger.required([[0], [0]], [[4], [4]])
    assert claimed[1].mlp_positions == 4 < twice.mlp_positions
