"""Legs of a benchmark: shapes, models and alternating timing, shared by the scripts of this folder.

Ratios of legs that alternate in one process are what these scripts print; absolute times on a
shared machine mean nothing. Not here: tests (they never check a time).
"""

import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from bench.decoding import StopRule, decode
from bench.meters.device import CpuDevice
from methods.contract import Method
from methods.engine import checkpoint
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Greedy
from methods.engine.shape import Shape, complete_fields
from methods.engine.transformer import Transformer
from methods.registry import find_method, find_params

NEW_TOKENS = 128


def opt(num_layers: int, width: int, num_heads: int) -> Shape:
    """An OPT of the usual proportions and vocabulary."""
    fields = complete_fields(
        {
            "family": "opt",
            "num_layers": num_layers,
            "width": width,
            "num_heads": num_heads,
            "ffn_width": 4 * width,
            "vocab_size": 50272,
            "max_positions": 2048,
            "bos_token_id": 2,
            "eos_token_ids": (2,),
            "pad_token_id": 1,
        }
    )
    return Shape(**fields)


def prompts(rows: int, *, equal: bool, seed: int = 0) -> Prompts:
    """Random prompts: 64 tokens each, or 16..128 tokens evenly spread."""
    draw = torch.Generator().manual_seed(seed)
    lengths = [64] * rows if equal else [16 + 112 * row // max(rows - 1, 1) for row in range(rows)]
    ids = [torch.randint(4, 50000, (length,), generator=draw).tolist() for length in lengths]
    return Prompts.of(ids)


def method(name: str, shape: Shape, **settings: object) -> Method:
    """A method with its settings resolved."""
    module = find_params(name)
    params = module.resolve(module.Params(**settings), shape, {})
    return find_method(name).Method(params, shape)


def engine(transformer: Transformer, rows: int) -> InferenceModel:
    """The inference form that a run of so many rows uses on this CPU."""
    return InferenceModel(transformer, Options(packed=True, rows=rows))


def decode_s(method: Method, model: InferenceModel, batch: Prompts, new_tokens: int) -> float:
    """Decode seconds of one pass at fixed length, the prompt pass excluded."""
    rule = StopRule(new_tokens, ())
    return decode(method, model, batch, rule, Greedy(), CpuDevice()).timing.decode_s


def to_transformers(transformer: Transformer) -> torch.nn.Module:
    """The same weights as a model of the transformers library."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(transformer, Path(folder))
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def alternate(legs: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each leg, one untimed pass first, order reversed in every other repeat."""
    times: dict[str, list[float]] = {name: [] for name in legs}
    for leg in legs.values():
        leg()
    for repeat in range(repeats):
        names = list(legs)
        for name in names if repeat % 2 else reversed(names):
            times[name].append(legs[name]())
    return times


def ratio(above: list[float], below: list[float]) -> tuple[float, float, float]:
    """Median of paired ratios, lowest and highest."""
    pairs = [a / b for a, b in zip(above, below, strict=True)]
    return statistics.median(pairs), min(pairs), max(pairs)


class Results:
    """The table that a benchmark prints: a ratio, its range, and what it should reach."""

    def __init__(self, title: str) -> None:
        self.table = Table(title=title, title_justify="left")
        for name in ("case", "ratio", "lowest", "highest", "wanted", "reached"):
            self.table.add_column(name, justify="left" if name == "case" else "right")

    def add(self, case: str, values: tuple[float, float, float], wanted: float) -> None:
        """One row, shown at once as a plain line too, since a run is long."""
        shown = [f"{value:.3f}" for value in values]
        self.table.add_row(case, *shown, f"{wanted:.2f}", "yes" if values[0] >= wanted else "NO")
        Console(stderr=True).print(f"{case}: {shown[0]} ({wanted:.2f})", highlight=False)

    def show(self) -> None:
        """Prints the table."""
        Console().print(self.table)
