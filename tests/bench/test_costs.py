"""FLOPs against sums made by hand, one family each."""

import dataclasses

from bench.costs import flops
from methods.engine.ledger import Sums
from methods.engine.shape import Shape, complete_fields

OPT = {
    "family": "opt",
    "num_layers": 3,
    "width": 8,
    "num_heads": 2,
    "ffn_width": 32,
    "vocab_size": 50,
    "max_positions": 16,
}
# Query heads wider than the residual stream, half as many heads for keys and values.
LLAMA = OPT | {
    "family": "llama",
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 3,
    "ffn_width": 20,
    "rope_theta": 1e4,
}
WORK = Sums(
    attention_positions=3,
    attended_pairs=12,
    mlp_positions=2,
    kv_positions=1,
    head_positions=2,
    embed_positions=5,
)


def _shape(**fields):
    return Shape(**complete_fields(fields))


def test_flops_of_an_opt_are_those_made_by_hand():
    # q, k, v, out: 4 matrices 8 x 8 = 256           3 positions   768
    # scores and values: 8 + 8 = 16                 12 pairs       192
    # two MLP matrices 8 x 32 = 512                  2 positions  1024
    # k, v: 2 matrices 8 x 8 = 128                   1 position    128
    # head 50 x 8 = 400                              2 positions   800
    # embedding: a look-up                           5 positions     0
    multiply_adds = 768 + 192 + 1024 + 128 + 800
    assert flops(WORK, _shape(**OPT)) == 2 * multiply_adds == 5824


def test_flops_of_an_embedding_of_its_own_width_count_its_projections():
    # As above, but for the head: 50 x 4 + a projection 8 x 4 = 232, twice: 464;
    # and the embedding: a projection 4 x 8 = 32 at 5 positions: 160.
    multiply_adds = 768 + 192 + 1024 + 128 + 464 + 160
    shape = _shape(**OPT, embed_width=4, norm_placement="post")
    assert flops(WORK, shape) == 2 * multiply_adds == 5472


def test_flops_of_a_llama_with_grouped_heads_and_a_gated_mlp_are_those_made_by_hand():
    # Query heads are 4 x 3 = 12 wide, key heads and value heads 2 x 3 = 6.
    # q 8 x 12, k and v 8 x 6 each, out 12 x 8: 288   3 positions   864
    # scores and values: 12 + 12 = 24                12 pairs       288
    # three MLP matrices 8 x 20 = 480                 2 positions   960
    # k and v 8 x 6 = 96                              1 position     96
    # head 50 x 8 = 400                               2 positions   800
    multiply_adds = 864 + 288 + 960 + 96 + 800
    assert flops(WORK, _shape(**LLAMA)) == 2 * multiply_adds == 6016


def test_a_token_through_opt_125m_costs_two_flops_for_each_weight_of_a_matrix():
    fields = {"num_layers": 12, "width": 768, "num_heads": 12, "ffn_width": 3072}
    shape = _shape(**OPT | fields | {"vocab_size": 50272, "max_positions": 2048})
    work = Sums(attention_positions=12, mlp_positions=12, head_positions=1, embed_positions=1)
    # All parameters (125,239,296) less positions 2050 x 768, 25 norms of 2 x 768, and biases:
    # 12 layers of 5 x 768 + 3072.
    matrices = 125_239_296 - 2050 * 768 - 25 * 2 * 768 - 12 * (5 * 768 + 3072)
    assert shape.num_parameters == 125_239_296
    assert flops(work, shape) == 2 * matrices == 247_087_104


def test_no_work_costs_nothing_and_costs_of_parts_add_up():
    shape = _shape(**LLAMA)
    parts = [Sums(**{field.name: getattr(WORK, field.name)}) for field in dataclasses.fields(Sums)]
    assert flops(Sums(), shape) == 0
    assert sum(flops(part, shape) for part in parts) == flops(WORK, shape)
