"""How every batch of a run is treated: stops, choice of tokens, passes, what is scored.

Apart from ``run.py``, because a calibration decodes by the same rules and is no run. Not here: how
a batch is measured (``measure.py``).
"""

from collections.abc import Callable, Sequence

from bench import executed, lookup
from bench.decoding import StopRule
from bench.measure import Plan
from bench.preparation import Prepared
from methods.engine.drawing import Warp
from methods.engine.sampling import Chooser, Greedy, Sampled
from methods.registry import find_params


def measuring_plan(prepared: Prepared, tell: Callable[[str], None] = lambda text: None) -> Plan:
    """How every batch of a run is treated; ``tell`` gets word of what takes long after it."""
    config = prepared.planned.config
    scores = prepared.planned.task.scores
    lossless = find_params(config.method.name).ABILITIES.lossless
    stops = prepared.text.stop_ids if config.decode.length == "until_eos" else ()
    return Plan(
        rule=StopRule(config.max_new_tokens, stops, config.engine.drop_finished),
        chooser=_chooser(prepared),
        repeats=config.meter.repeats,
        warmups=config.meter.warmups,
        timed_batches=config.meter.timed_batches,
        decode_text=None if prepared.planned.drawn else prepared.scored_text,
        scores={name: lookup.find("bench.scores", name, "score") for name in scores},
        reference=prepared.planned.own_reference if lossless else None,
        profile=config.meter.profile,
        energy=config.meter.energy,
        execute=executed.executor(tell) if executed.wanted(prepared.planned.examples) else None,
    )


def _chooser(prepared: Prepared) -> Callable[[Sequence[int]], Chooser]:
    """Makes a chooser for rows of these numbers in the run."""
    config = prepared.planned.config
    decode = config.decode
    if decode.choose == "greedy":
        return lambda numbers: Greedy()
    warp = Warp(decode.temperature, decode.top_k, decode.top_p)
    limit, device = config.max_new_tokens, prepared.device
    return lambda numbers: Sampled(config.seed, numbers, warp, limit, device)
