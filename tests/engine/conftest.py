"""The reference: transformers' own models of the tiny shapes, and helpers around them."""

import copy
from dataclasses import dataclass

import pytest
import torch
import transformers

from methods.engine import checkpoint
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel

# Written out in transformers' own words, so that a wrong key of ours cannot cancel out.
_COMMON = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 96,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
}
CONFIGS = {
    "an OPT": (
        transformers.OPTConfig,
        {"ffn_dim": 80, "word_embed_proj_dim": 32, "dropout": 0.0},
    ),
    "an OPT with norms behind and an embedding of its own width": (
        transformers.OPTConfig,
        {"ffn_dim": 80, "word_embed_proj_dim": 20, "do_layer_norm_before": False, "dropout": 0.0},
    ),
    "a Llama with grouped heads": (
        transformers.LlamaConfig,
        {
            "intermediate_size": 44,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "a Llama with scaled rotary positions and a tied head": (
        transformers.LlamaConfig,
        {
            "intermediate_size": 44,
            "num_key_value_heads": 1,
            "head_dim": 12,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "a Qwen2 with its bias": (
        transformers.Qwen2Config,
        {
            "intermediate_size": 44,
            "num_key_value_heads": 2,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        },
    ),
}
NUM_PROMPTS, NEW_TOKENS = 20, 16


@dataclass(frozen=True)
class Pair:
    """A reference model, its checkpoint folder, and ours loaded from it."""

    reference: transformers.PreTrainedModel
    folder: object
    ours: object

    def cut(self, layers):
        """The reference with its first layers only."""
        model = copy.deepcopy(self.reference)
        inner = model.model.decoder if hasattr(model.model, "decoder") else model.model
        inner.layers = inner.layers[:layers]
        model.config.num_hidden_layers = layers
        return model


@pytest.fixture(scope="session")
def pair(shape_name, randomise, tmp_path_factory):
    """The reference and ours, of each shape in turn; nobody may change them."""
    kind, fields = CONFIGS[shape_name]
    config = kind(**_COMMON, **fields)
    reference = randomise(transformers.AutoModelForCausalLM.from_config(config), seed=1)
    folder = tmp_path_factory.mktemp("reference")
    reference.save_pretrained(folder)
    return Pair(reference, folder, checkpoint.load(folder))


@pytest.fixture(scope="session")
def references(pair, make_prompts):
    """20 prompts and the ids that transformers' greedy search gives for each, alone."""
    lengths = [1 + (7 * row) % 23 for row in range(NUM_PROMPTS)]
    prompts = make_prompts(lengths, seed=2)
    return prompts, [_greedy(pair.reference, prompt) for prompt in prompts]


def _greedy(model, prompt):
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=1,
        )
    return output[0, len(prompt) :].tolist()


@pytest.fixture
def bind():
    """``bind(transformer, **options)``: in inference form, with a cache that refuses holes."""

    def make(transformer, **options):
        return InferenceModel(
            transformer, Options(**{"packed": False, "checked_cache": True} | options)
        )

    return make


@pytest.fixture
def prefilled(bind):
    """``prefilled(transformer, rows, room)``: a model whose cache holds the prompts."""

    def make(transformer, rows, room, **options):
        model = bind(transformer, **options)
        prompts = Prompts.of(rows)
        cache = model.new_cache(prompts, room)
        x = model.prefill(prompts, cache)
        return model, cache, x

    return make


@pytest.fixture
def run_layers():
    """``run_layers(model, cache, ids, positions, layers)``: logits of new tokens."""

    def run(model, cache, ids, positions, layers=None):
        x = model.embed(ids, positions)
        for layer in range(model.shape.num_layers) if layers is None else layers:
            x = model.block(layer, x, positions, cache)
        return model.head(x, positions)

    return run
