"""What ``gpu_check.py`` compares, a function each, for one shape and dtype.

Apart from the script, whose business is order, time and failures. Runs on a CPU as well, which is
how it is tested.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial

import legs
import torch
import waits
from gpu_rows import Found
from judged import ratio, spread
from planted import Planted
from theirs import Generate, to_transformers

from methods.engine.bound import Options
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Chooser, Greedy
from methods.engine.shape import Shape

PRESETS = ("2x", "4x")
DRAFTS, ACCEPTED = 4, (1.0, 0.8, 0.5)
# Of the engine's options those that bear on a GPU; an older engine does not have all.
VARIANTS: tuple[Mapping[str, object], ...] = (
    {"attention": "products"},
    {"compiled": True},
    {"cuda_graphs": True},
    {"compiled": True, "cuda_graphs": True},
)
# In float32 two kernels part at a near tie, hardly an id of 1,000, which costs the rest of its row;
# a fault parts nearly all of them. In 16 bits nothing is demanded.
LEAST_EQUAL = 0.9
# A wait more than decided on is wrong: none, but one a round where drafts are verified, and one at
# each layer at which a token may leave.
MAY_WAIT = {"dense": 0, "skipdecode": 0, "layerskip": 1}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        new_tokens: of each row.
        repeats: timed passes of each leg.
        read_bytes: of memory, to learn its bandwidth.
    """

    new_tokens: int = legs.NEW_TOKENS
    repeats: int = 5
    read_bytes: int = legs.READ_BYTES


class Held:
    """One shape's weights, in our form and in transformers', drawn when they are first asked for.

    Args:
        label: of the shape.
        shape: the architecture.
        dtype: of the weights.
        device: where they lie.
        sizes: of prompts, passes and readings.
    """

    def __init__(
        self,
        label: str,
        shape: Shape,
        dtype: torch.dtype,
        device: torch.device,
        sizes: Sizes,
    ) -> None:
        self.shape, self.dtype, self.device, self.sizes = shape, dtype, device, sizes
        self.new_tokens = sizes.new_tokens
        self.name = f"{label}, {str(dtype).removeprefix('torch.')}"

    @cached_property
    def transformer(self):
        return legs.drawn(self.shape, self.dtype, self.device)

    @cached_property
    def theirs(self):
        return to_transformers(self.transformer)

    def let_go(self) -> None:
        """Frees the weights."""
        for name in ("theirs", "transformer"):
            self.__dict__.pop(name, None)

    def model(self, rows: int, **changes: object) -> InferenceModel:
        return legs.engine(self.transformer, rows, **changes)

    def decode(
        self,
        name: str,
        model: InferenceModel,
        batch: legs.Prompts,
        chooser: Callable[[], Chooser] = Greedy,
        **settings: object,
    ) -> legs.Decode:
        method = legs.method(name, self.shape, **settings)
        return legs.Decode(method, model, batch, self.new_tokens, chooser)

    def prompts(self, rows: int, *, equal: bool = True) -> legs.Prompts:
        vocab_size = min(50000, self.shape.vocab_size)
        return legs.prompts(rows, equal=equal, vocab_size=vocab_size, device=self.device)


def equal_ids(held: Held, batches: Sequence[int]) -> Iterator[Found]:
    """Dense and transformers say the same, with equal prompts and with unequal ones."""
    for rows in batches:
        model = held.model(rows)
        for equal in (True, False) if rows > 1 else (True,):
            batch = held.prompts(rows, equal=equal)
            dense = held.decode("dense", model, batch)
            theirs = Generate(held.theirs, batch, held.new_tokens)
            dense()
            theirs()
            kind = "equal" if equal else "unequal"
            yield _same(
                f"dense's ids that are transformers', {held.name}, batch {rows}, {kind} prompts",
                dense.latest.ids,
                theirs.ids.tolist(),
                wrong_below=LEAST_EQUAL,
            )


def waits_of_methods(held: Held, rows: int = 8) -> Iterator[Found]:
    """Times that the host waits in one step of a method."""
    layers, length = held.shape.num_layers, held.new_tokens
    asked: dict[str, dict[str, object]] = {
        "dense": {},
        "skipdecode": {"preset": "2x", "schedule_length": length},
        "calm": {"measure": "state", "threshold": 0.95},
        "layerskip": {"exit_layer": layers // 4, "num_speculations": DRAFTS},
    }
    model, batch = held.model(rows), held.prompts(rows, equal=False)
    for name, settings in asked.items():
        found = waits.of_step(legs.method(name, held.shape, **settings), model, batch)
        allowed = MAY_WAIT.get(name, layers - 1)
        yield Found(
            f"{name}, waits of the host in a step, {held.name}, batch {rows}",
            None if found.count is None else (float(found.count),) * 3,
            unit="waits",
            note=f"allowed {allowed}; {' '.join(found.lines)}".rstrip("; "),
            wrong=found.count is not None and found.count > allowed,
        )


def speeds(held: Held, rows: int) -> Iterator[Found]:
    """Dense against transformers; presets and planted drafts against dense and their promises."""
    model, batch = held.model(rows), held.prompts(rows)
    exit_layer = held.shape.num_layers // 4
    dense = held.decode("dense", model, batch)
    skipping = {
        preset: held.decode(
            "skipdecode", model, batch, preset=preset, schedule_length=held.new_tokens
        )
        for preset in PRESETS
    }
    drafting = {
        accepted: held.decode(
            "layerskip",
            model,
            batch,
            partial(Planted, accepted),
            exit_layer=exit_layer,
            num_speculations=DRAFTS,
        )
        for accepted in ACCEPTED
    }
    passes: dict[str, Callable[[], float]] = {
        "theirs": Generate(held.theirs, batch, held.new_tokens),
        "dense": dense,
        **skipping,
        **{str(accepted): leg for accepted, leg in drafting.items()},
        "short": legs.LatePass(model, batch, exit_layer, 1),
        "long": legs.LatePass(model, batch, exit_layer, DRAFTS + 1),
        "read": legs.Read(held.device, held.sizes.read_bytes),
    }
    times = legs.alternate(passes, held.sizes.repeats)
    case = f"{held.name}, batch {rows}"
    step_ms = 1e3 * spread(times["dense"])[0] / (held.new_tokens - 1)
    values = ratio(times["theirs"], times["dense"])
    yield Found(
        f"dense / transformers.generate, {case}", values, note=f"{step_ms:.3g} ms a step of dense"
    )
    share = dense.bytes() / held.sizes.read_bytes
    roofline_s = [share * seconds for seconds in times["read"]]
    yield Found(
        f"dense, share of the read bandwidth's roofline, {case}", ratio(roofline_s, times["dense"])
    )
    for preset, leg in skipping.items():
        promise = dense.bytes() / leg.bytes()
        yield Found(
            f"skipdecode {preset} / dense, {case}",
            ratio(times["dense"], times[preset]),
            note=f"promised by bytes {promise:.3g}, by FLOPs {dense.flops() / leg.flops():.3g}",
        )
    verification = spread(ratio(times["long"], times["short"]))[0]
    for accepted, leg in drafting.items():
        model_says = legs.predicted(leg, verification)
        yield Found(
            f"layerskip / dense, acceptance {accepted:g}, {case}",
            ratio(times["dense"], times[str(accepted)]),
            note=f"latency model {model_says:.3g} with verification {verification:.3g}",
        )


def variants(device: torch.device) -> list[Mapping[str, object]]:
    """Options that this engine has and this device can have."""
    known = {field.name for field in fields(Options)}
    return [
        changes
        for changes in VARIANTS
        if set(changes) <= known and (device.type == "cuda" or not changes.get("cuda_graphs"))
    ]


def called(changes: Mapping[str, object]) -> str:
    """A variant's name."""
    return ", ".join(f"{name}={value}" for name, value in changes.items())


def option(held: Held, rows: int, changes: Mapping[str, object]) -> Iterator[Found]:
    """Dense with an option over dense without; SkipDecode too, whose layers come and go."""
    batch = held.prompts(rows)
    plain = held.model(rows)
    other = held.model(rows, packed=False, **changes)
    wrong_below = LEAST_EQUAL if held.dtype == torch.float32 else 0.0
    for name, settings in (
        ("dense", {}),
        ("skipdecode", {"preset": "2x", "schedule_length": held.new_tokens}),
    ):
        without = held.decode(name, plain, batch, **settings)
        with_it = held.decode(name, other, batch, **settings)
        times = legs.alternate({"without": without, "with": with_it}, held.sizes.repeats)
        case = f"{name} with {called(changes)}, {held.name}, batch {rows}"
        same = _same(case, with_it.latest.ids, without.latest.ids, wrong_below)
        yield Found(
            f"{case} / without",
            ratio(times["without"], times["with"]),
            note=f"ids the same: {same.values[0]:.3f}",
            wrong=same.wrong,
        )


def _same(name: str, ours: list[list[int]], theirs: list[list[int]], wrong_below: float) -> Found:
    """The share of ids that are equal."""
    pairs = [pair for rows in zip(ours, theirs, strict=True) for pair in zip(*rows, strict=True)]
    share = sum(a == b for a, b in pairs) / len(pairs)
    return Found(name, (share,) * 3, unit="share", wrong=share < wrong_below)
