"""What every test may use, and the rule by which marked tests are left out: never silently.

Imports of torch stand inside the functions: the tests of the tree's rules run without it.
"""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# Runs of these tests are handed to nobody; those of tests/tracked_runs.py are.
os.environ["WANDB_MODE"] = "disabled"

# Sizes that differ from each other wherever a mix-up of two could hide. Four shapes that the engine
# must get right between them: norm before and after, an embedding of its own width, grouped heads,
# query heads wider than the residual stream, scaled rotary positions, a tied and an untied head.
_SIZES = {"num_layers": 4, "width": 32, "num_heads": 4, "vocab_size": 61, "max_positions": 96}
_TOKENS = {"bos_token_id": 2, "eos_token_ids": (2,), "pad_token_id": 1}
TINY_FIELDS = {
    "an OPT": {"family": "opt", "ffn_width": 80},
    "an OPT with norms behind and an embedding of its own width": {
        "family": "opt",
        "ffn_width": 80,
        "norm_placement": "post",
        "embed_width": 20,
    },
    "a Llama with grouped heads": {
        "family": "llama",
        "ffn_width": 44,
        "num_kv_heads": 2,
        "rope_theta": 1e4,
    },
    "a Llama with scaled rotary positions and a tied head": {
        "family": "llama",
        "ffn_width": 44,
        "num_kv_heads": 1,
        "head_dim": 12,
        "rope_theta": 5e5,
        "tied_embeddings": True,
        # factor, low_freq_factor, high_freq_factor, original_max_positions
        "rope_scaling": (32.0, 1.0, 4.0, 32),
    },
    "a Qwen2 with its bias": {
        "family": "qwen2",
        "ffn_width": 44,
        "num_kv_heads": 2,
        "rope_theta": 1e6,
        "tied_embeddings": True,
    },
}


def pytest_addoption(parser):
    parser.addoption("--run-slow", action="store_true", help="also run the tests marked slow")
    parser.addoption("--run-slurm", action="store_true", help="also run the tests marked slurm")
    parser.addoption("--run-slurm-long", action="store_true", help="and those marked slurm_long")
    parser.addoption("--data-dir", help="folder with e2e, gsm8k, human_eval: their published files")


def pytest_collection_modifyitems(config, items):
    reasons = _reasons_to_skip(
        config, {mark.name for item in items for mark in item.iter_markers()}
    )
    for item in items:
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _reasons_to_skip(config, used):
    """Marker -> why its tests are skipped; torch is asked only where a test needs a GPU."""
    reasons = {}
    if not config.getoption("--run-slow"):
        reasons["slow"] = "slow: runs with --run-slow"
    if not config.getoption("--run-slurm"):
        reasons["slurm"] = "slurm: runs with --run-slurm (make slurm)"
    elif shutil.which("sbatch") is None:
        reasons["slurm"] = "slurm: no sbatch on PATH (slurm/lab/install.sh)"
    if not config.getoption("--run-slurm-long"):
        reasons["slurm_long"] = "slurm_long: runs with --run-slurm --run-slurm-long"
    if "gpu" in used and not _has_gpu():
        reasons["gpu"] = "gpu: no CUDA device"
    return reasons


@pytest.fixture(scope="session")
def published(pytestconfig):
    """``published(name)``: the folder of a data set's files, as published; skips without one."""

    def find(name):
        given = pytestconfig.getoption("--data-dir")
        if given is None:
            pytest.skip("published files: runs with --data-dir DIR")
        folder = Path(given).expanduser() / name
        assert folder.is_dir(), f"--data-dir {given} has no folder {name}"
        return folder

    return find


def _has_gpu():
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session", params=TINY_FIELDS)
def shape_name(request):
    """Each of the tiny shapes in turn."""
    return request.param


@pytest.fixture(scope="session")
def tiny_shape():
    """``tiny_shape(name, **changes)``: one of the tiny Shapes."""
    return _tiny_shape


@pytest.fixture(scope="session")
def tiny_transformer():
    """``tiny_transformer(name, seed, **changes)``: random weights whose argmax varies."""

    def make(name, seed=0, **changes):
        from methods.engine.transformer import Transformer

        return _randomise(Transformer(_tiny_shape(name, **changes)), seed)

    return make


@pytest.fixture(scope="session")
def randomise():
    """``randomise(module, seed)``: weights large enough that greedy ids do not repeat for ever."""
    return _randomise


@pytest.fixture(scope="session")
def make_method():
    """``make_method(name, shape, **settings)``: a method with resolved settings."""

    def make(name, shape, **settings):
        from methods.registry import find_method, find_params

        module = find_params(name)
        params = module.resolve(module.Params(**settings), shape, {"schedule_length": 8})
        return find_method(name).Method(params, shape)

    return make


@pytest.fixture(scope="session")
def make_prompts():
    """``make_prompts(lengths, vocab_size, seed)``: rows of random ids, BOS first."""

    def make(lengths, vocab_size=_SIZES["vocab_size"], seed=0):
        import torch

        draw = torch.Generator().manual_seed(seed)
        return [
            [2, *torch.randint(3, vocab_size, (length - 1,), generator=draw).tolist()]
            for length in lengths
        ]

    return make


@pytest.fixture(scope="session")
def drive():
    """``drive(method, model, rows, new_tokens, chooser)``: decodes until each row has its ids."""
    return _drive


@dataclass
class Decoded:
    """New ids of each row, cut to the limit, and all rounds."""

    rows: list
    rounds: list = field(default_factory=list)


def _tiny_shape(name, **changes):
    from methods.engine.shape import RopeScaling, Shape, complete_fields

    fields = _SIZES | _TOKENS | TINY_FIELDS[name] | changes
    if "rope_scaling" in fields:
        fields["rope_scaling"] = RopeScaling(*fields["rope_scaling"])
    return Shape(**complete_fields(fields))


def _randomise(module, seed):
    import torch

    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            if parameter.dim() == 1:
                scale = "norm" in name and name.endswith("weight")
                parameter.copy_(float(scale) + 0.1 * noise)
            elif name.endswith(("down.weight", "fc2.weight", "down_proj.weight")):
                # Centred: what a ReLU lets through has a mean, which would drown the token.
                parameter.copy_(0.6 * (noise - noise.mean(dim=1, keepdim=True)))
            else:
                parameter.copy_((1.0 if "position" in name else 0.3) * noise)
    return module.eval()


def _drive(method, model, rows, new_tokens, chooser=None):
    import torch

    from methods.contract import Limits
    from methods.engine.cache import Prompts
    from methods.engine.sampling import Greedy

    limits = Limits(new_tokens, chooser or Greedy())
    decoding = method.decode(model, Prompts.of(rows), limits)
    decoded = Decoded([[] for _ in rows])
    live = None
    while min(map(len, decoded.rows)) < new_tokens:
        with torch.inference_mode():
            answer = decoding.send(live) if decoded.rounds else next(decoding)
        model.ledger.close_round()
        # One round late, as the contract has it; None while no row has ended.
        ended = [len(row) >= new_tokens for row in decoded.rows]
        live = ~torch.tensor(ended) if any(ended) else None
        decoded.rounds.append(answer)
        counts = [answer.ids.shape[1]] * len(rows) if answer.counts is None else answer.counts
        for row, ids, count in zip(decoded.rows, answer.ids.tolist(), counts, strict=True):
            row.extend(ids[: int(count)])
    decoding.close()
    decoded.rows = [row[:new_tokens] for row in decoded.rows]
    return decoded
