"""Every method on blocks that are compiled or recorded: the same ids, costs and layers."""

import pytest
import torch

from bench.decoding import StopRule, decode
from bench.meters.device import CpuDevice
from methods.engine import compiled
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Greedy
from methods.registry import find_params, method_names

METHODS = [name for name in method_names() if find_params(name).ABILITIES.engine == "own"]
MODELS = {"an OPT": "an OPT", "a Llama": "a Llama with scaled rotary positions and a tied head"}
LENGTHS, NEW = [3, 60, 1, 6], 10
FREE = StopRule(NEW, ())


class Replaying:
    """Stands in for a CUDA graph on a CPU: notes tensors, and computes on what they hold."""

    def __init__(self, step, x, kv, stand, pool):
        self.step, self.x, self.kv, self.stand = step, x, kv, stand

    def replay(self):
        self.x.copy_(self.step(self.x, self.kv, self.stand))


@pytest.fixture
def traced(monkeypatch):
    """Functions go through the compiler's front end, which refuses what is not pure in tensors."""
    real = torch.compile
    torch._dynamo.reset()
    monkeypatch.setattr(
        torch, "compile", lambda *given, **named: real(*given, backend="eager", **named)
    )


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(compiled, "Recorded", Replaying)


def _decoded(method, transformer, rows, rule=FREE, **options):
    model = InferenceModel(transformer, Options(packed=False, **options))
    decode(method, model, Prompts.of(rows), rule, Greedy(), CpuDevice())
    made = model.forms_made
    # Once more: on the memory, the graphs and the forms of the first time.
    found = decode(method, model, Prompts.of(rows), rule, Greedy(), CpuDevice())
    assert model.forms_made == made
    return found, made


@pytest.mark.usefixtures("traced", "recorded")
@pytest.mark.parametrize("kind", ["compiled", "cuda_graphs"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("shape", MODELS)
def test_blocks_in_any_form_decode_the_same(
    shape, name, kind, tiny_transformer, make_method, make_prompts
):
    transformer = tiny_transformer(MODELS[shape], num_layers=4)
    method, rows = make_method(name, transformer.shape), make_prompts(LENGTHS, seed=1)
    plain, none = _decoded(method, transformer, rows)
    other, made = _decoded(method, transformer, rows, checked_cache=True, **{kind: True})
    assert none == 0 < made
    assert other.ids == plain.ids
    assert other.layers == plain.layers
    assert other.decode_required == plain.decode_required
    # Keys are read in steps of 64, hidden ones too, and that is told.
    assert other.decode_executed.mlp_positions == plain.decode_executed.mlp_positions
    assert other.decode_executed.attended_pairs > plain.decode_executed.attended_pairs


@pytest.mark.usefixtures("traced", "recorded")
@pytest.mark.parametrize("kind", ["compiled", "cuda_graphs"])
@pytest.mark.parametrize("name", METHODS)
def test_rows_may_leave_blocks_in_any_form(name, kind, tiny_transformer, make_method, make_prompts):
    transformer = tiny_transformer("an OPT", num_layers=4)
    method, rows = make_method(name, transformer.shape), make_prompts(LENGTHS, seed=1)
    free, _ = _decoded(method, transformer, rows)
    # The first row ends with its third token, the last one with its sixth.
    stops = free.ids[0][2], free.ids[3][5]
    plain, _ = _decoded(method, transformer, rows, StopRule(NEW, stops))
    left, _ = _decoded(
        method, transformer, rows, StopRule(NEW, stops, True), checked_cache=True, **{kind: True}
    )
    assert left.ids == plain.ids
    assert left.layers == plain.layers
    assert left.decode_required == plain.decode_required
    assert left.decode_executed.mlp_positions < plain.decode_executed.mlp_positions


@pytest.mark.usefixtures("traced")
def test_one_compiled_form_serves_all_layers_and_steps(tiny_transformer, make_method, make_prompts):
    transformer = tiny_transformer("an OPT", num_layers=4)
    torch._dynamo.utils.counters.clear()
    _, made = _decoded(
        make_method("dense", transformer.shape), transformer, make_prompts(LENGTHS), compiled=True
    )
    # 60 prompt tokens and 10 more: with up to 64 slots, and with up to 128.
    assert made == torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


@pytest.mark.usefixtures("recorded")
def test_a_graph_is_recorded_for_each_layer_and_number_of_keys(
    tiny_transformer, make_method, make_prompts
):
    transformer = tiny_transformer("an OPT", num_layers=4)
    method = make_method("dense", transformer.shape)
    _, made = _decoded(method, transformer, make_prompts(LENGTHS), cuda_graphs=True)
    assert made == 2 + 2 * 4


@pytest.mark.usefixtures("recorded")
def test_memory_of_keys_is_used_again_and_left_clean(tiny_transformer, make_prompts):
    transformer = tiny_transformer("an OPT")
    model = InferenceModel(transformer, Options(packed=False, cuda_graphs=True))
    prompts = Prompts.of(make_prompts(LENGTHS))
    with torch.inference_mode():
        first = model.new_cache(prompts, NEW)
        model.prefill(prompts, first)
        assert first.layers[0].any()
        second = model.new_cache(prompts, NEW - 3)
        assert second.layers[0].data_ptr() == first.layers[0].data_ptr()
        assert not any(layer.any() for layer in second.layers)
        fewer = Prompts.of(make_prompts(LENGTHS[1:]))
        other = model.new_cache(fewer, NEW)
        assert other.layers[0].data_ptr() != first.layers[0].data_ptr()


def test_compiled_blocks_take_plain_weights_only():
    with pytest.raises(ValueError, match="packed=False"):
        Options(packed=True, compiled=True)


# The compiler warns of what its own parts do.
@pytest.mark.filterwarnings("ignore")
def test_the_cpu_compiler_gives_the_ids_of_plain_blocks(
    tiny_transformer, make_method, make_prompts
):
    torch._dynamo.reset()
    transformer = tiny_transformer(MODELS["a Llama"], num_layers=2)
    method, rows = make_method("dense", transformer.shape), make_prompts([3, 5], seed=1)
    plain, _ = _decoded(method, transformer, rows)
    other, _ = _decoded(method, transformer, rows, compiled=True)
    assert other.ids == plain.ids


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [("compiled",), ("cuda_graphs",), ("compiled", "cuda_graphs")])
@pytest.mark.parametrize("name", METHODS)
def test_on_a_gpu_blocks_in_any_form_decode_the_same(
    name, kind, tiny_transformer, make_method, make_prompts
):
    transformer = tiny_transformer("an OPT", num_layers=4)
    method, rows = make_method(name, transformer.shape), make_prompts(LENGTHS, seed=1)

    def ids(**options):
        model = InferenceModel(transformer, Options(packed=False, device="cuda", **options))
        prompts = Prompts.of(rows, "cuda")
        return decode(method, model, prompts, StopRule(NEW, ()), Greedy(), CpuDevice()).ids

    assert ids(**dict.fromkeys(kind, True)) == ids()
