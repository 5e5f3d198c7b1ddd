"""Numbers of parameters: the published totals, and those of the modules themselves."""

import pytest

from methods.engine.shape import RopeScaling, Shape, complete_fields
from methods.engine.transformer import Transformer

TOKENS = {"bos_token_id": 2, "eos_token_ids": (2,)}


def _opt(layers, width, heads, **changes):
    sizes = {"num_layers": layers, "width": width, "num_heads": heads, "ffn_width": 4 * width}
    return {"family": "opt", "vocab_size": 50272, "max_positions": 2048} | sizes | changes


PUBLISHED = {
    "OPT of 125m": (_opt(12, 768, 12), 125_239_296),
    "OPT of 350m": (
        _opt(24, 1024, 16, norm_placement="post", embed_width=512),
        331_196_416,
    ),
    "OPT of 1.3b": (_opt(24, 2048, 32), 1_315_758_080),
    "OPT of 6.7b": (_opt(32, 4096, 32), 6_658_473_984),
    "Llama 3.2 of 1B": (
        {
            "family": "llama",
            "num_layers": 16,
            "width": 2048,
            "num_heads": 32,
            "num_kv_heads": 8,
            "ffn_width": 8192,
            "vocab_size": 128256,
            "max_positions": 131072,
            "rope_theta": 5e5,
            "rope_scaling": RopeScaling(32.0, 1.0, 4.0, 8192),
            "tied_embeddings": True,
        },
        1_235_814_400,
    ),
}


@pytest.mark.parametrize(("fields", "total"), PUBLISHED.values(), ids=PUBLISHED)
def test_the_number_of_parameters_is_the_published_total(fields, total):
    assert Shape(**complete_fields(fields | TOKENS)).num_parameters == total


def test_the_number_of_parameters_is_that_of_the_modules(shape_name, tiny_shape):
    shape = tiny_shape(shape_name)
    assert sum(p.numel() for p in Transformer(shape).parameters()) == shape.num_parameters


def test_biases_of_a_gated_mlp_and_an_attention_are_counted(tiny_shape):
    shape = tiny_shape("a Llama with grouped heads", qkv_bias=True, out_bias=True, mlp_bias=True)
    assert sum(p.numel() for p in Transformer(shape).parameters()) == shape.num_parameters


def test_given_fields_are_never_replaced():
    given = _opt(
        2, 32, 4, num_kv_heads=1, embed_width=8, head_dim=3, final_norm=False, norm_eps=1.0
    )
    fields = complete_fields(given)
    assert {key: fields[key] for key in given} == given


def test_fields_that_follow_from_others_are_filled_in():
    fields = complete_fields(_opt(2, 32, 4))
    derived = {"num_kv_heads": 4, "embed_width": 32, "head_dim": 8, "final_norm": True}
    assert {key: fields[key] for key in derived} == derived
    assert complete_fields(_opt(2, 32, 4, norm_placement="post"))["final_norm"] is False


def test_the_drawn_weights_follow_the_seed_and_no_other_generator(tiny_shape):
    import torch

    shape = tiny_shape("an OPT")
    before = torch.get_rng_state()
    one, same, other = (Transformer(shape).initialise(seed) for seed in (0, 0, 1))
    torch.set_rng_state(before)
    assert torch.equal(one.blocks[3].up.weight, same.blocks[3].up.weight)
    assert not torch.equal(one.blocks[3].up.weight, other.blocks[3].up.weight)
    assert one.blocks[0].up.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert one.blocks[0].out.weight.std().item() == pytest.approx(0.02 / 8**0.5, rel=0.05)
    assert not one.blocks[0].up.bias.any()
