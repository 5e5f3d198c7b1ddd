"""Are our drafting methods faster than transformers' own? The same weights, settings and prompts.

`layerskip` against `hf_early_exit` (same E and d, threshold 0), and `prompt_lookup` against
`hf_prompt_lookup` (same d and longest n-gram); `dense` against `hf_dense` for scale. A Llama of 12
layers, width 256, vocabulary 32,000; fp32, batch 1, greedy, 32 new tokens, alternating legs.
"decode": kept tokens a second after the first step; "whole": all of them, prompt pass included.
Run: python tests/benchmarks/peers.py [repeats]
"""

import sys

import legs
import torch
from judged import Results, ratio

from bench.decoding import Decoded, StopRule, decode
from bench.meters.device import CpuDevice
from bench.peers import PeerDecoder
from methods.engine import hf
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.sampling import Greedy
from methods.engine.shape import Shape, complete_fields
from methods.engine.transformer import Transformer
from methods.registry import find_params

LAYERS, EXIT_LAYER, DRAFTED, LOOKED_UP = 12, 3, 6, 10
RULE = StopRule(legs.NEW_TOKENS, ())


def llama() -> Shape:
    """A small Llama of the usual proportions and vocabulary."""
    fields = {
        "family": "llama",
        "num_layers": LAYERS,
        "width": 256,
        "num_heads": 4,
        "ffn_width": 688,
        "vocab_size": 32000,
        "max_positions": 2048,
        "rope_theta": 1e4,
        "bos_token_id": 1,
        "eos_token_ids": (2,),
    }
    return Shape(**complete_fields(fields))


def silenced(first: int) -> Transformer:
    """Random weights whose layers from ``first`` on add nothing."""
    transformer = Transformer(llama()).initialise(0)
    with torch.no_grad():
        for block in transformer.blocks[first:]:
            block.out.weight.zero_()
            block.down.weight.zero_()
    return transformer


def replayed(transformer: Transformer) -> Prompts:
    """A prompt that ends where it began, for a model of silent layers: it says all of it again."""
    first = [100]
    told = decode(
        legs.method("dense", transformer.shape),
        legs.engine(transformer, 1),
        Prompts.of([first]),
        RULE,
        Greedy(),
        CpuDevice(),
    )
    return Prompts.of([first + told.ids[0] + first])


class Side:
    """One method of a pair; a call decodes once and keeps its seconds for each kept token."""

    def __init__(self, name: str, settings: dict, transformer: Transformer, batch: Prompts) -> None:
        peer = find_params(name).ABILITIES.engine != "own"
        self.method = legs.method(name, transformer.shape, **settings)
        self.drive = PeerDecoder() if peer else decode
        self.model = (
            hf.from_transformer(transformer, Options(packed=False))
            if peer
            else legs.engine(transformer, 1)
        )
        self.batch = batch
        self.latest: Decoded | None = None
        # Of each pass: after the first step, and of all.
        self.decode_s, self.whole_s = [], []

    def __call__(self) -> float:
        latest = self.drive(self.method, self.model, self.batch, RULE, Greedy(), CpuDevice())
        kept, timing = len(latest.ids[0]), latest.timing
        before = (latest.first_round or [1])[0]
        self.decode_s.append(timing.decode_s / (kept - before))
        self.whole_s.append((timing.ttft_s + timing.decode_s) / kept)
        self.latest = latest
        return timing.decode_s


def compare(
    results: Results, names: tuple[str, str], settings: dict, wanted: float, repeats: int
) -> None:
    """Ratios of the peer's seconds over ours, on two kinds of weights or text."""
    ours, theirs = names
    for case, transformer, batch in weights_and_text(ours):
        sides = {name: Side(name, settings, transformer, batch) for name in names}
        legs.alternate(sides, repeats)
        assert sides[ours].latest.ids == sides[theirs].latest.ids, "a tie: choose another seed"
        spoken = sides[theirs].latest.speculation
        if spoken is not None:
            case += f", {spoken.accepted / max(spoken.drafted, 1):.2f} accepted"
        for part in ("decode_s", "whole_s"):
            # The first pass warmed up.
            pair = [getattr(sides[name], part)[1:] for name in (theirs, ours)]
            label = f"{ours} / {theirs}, {case}, {part.removesuffix('_s')}"
            results.add(label, ratio(*pair), wanted)


def weights_and_text(ours: str) -> list[tuple[str, Transformer, Prompts]]:
    """Weights and text on which drafts are rejected, and on which they are accepted."""
    batch = legs.prompts(1, equal=True)
    plain = Prompts(batch.ids % 31000 + 4, batch.lengths)
    random = ("random weights", silenced(LAYERS), plain)
    if ours == "layerskip":
        return [random, ("late layers silent", silenced(EXIT_LAYER), plain)]
    if ours == "prompt_lookup":
        silent = silenced(0)
        return [random, ("a text said again", silent, replayed(silent))]
    return [random]


def cases(results: Results, repeats: int) -> None:
    """All rows."""
    early = {"exit_layer": EXIT_LAYER, "num_speculations": DRAFTED}
    looked_up = {"num_speculations": LOOKED_UP, "max_ngram": 2}
    compare(results, ("layerskip", "hf_early_exit"), early, 1.5, repeats)
    compare(results, ("prompt_lookup", "hf_prompt_lookup"), looked_up, 1.0, repeats)
    compare(results, ("dense", "hf_dense"), {}, 1.0, repeats)


def main(repeats: int) -> int:
    results = Results()
    cases(results, repeats)
    return results.exit_code()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
