"""OPT's traps: BOS is EOS, the position table ends, and numbers may go bad without a word."""

import json
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, processors
from transformers import PreTrainedTokenizerFast

from bench import models, planning, text
from bench.decoding import StopRule, decode
from bench.errors import InputError, InvalidRunError
from bench.meters.device import CpuDevice
from bench.planning import plan
from bench.preparation import prepare
from bench.run import run
from bench.tasks import demo
from methods.engine import checkpoint
from methods.engine.bound import Options
from methods.engine.cache import Prompts
from methods.engine.inference import InferenceModel
from methods.engine.sampling import Greedy
from methods.engine.transformer import Transformer

EOS = 2
OPT = "an OPT"
LINES = ["name[Alder Hut], beds[8]\n", "Alder Hut is a small mountain hut with 8 beds.", "e e e"]


class LateDevice(CpuDevice):
    lag = 1


# ---- the end-of-text token that is also the first one ----


@pytest.mark.parametrize("name", ["dense", "skipdecode"])
def test_a_prompt_that_begins_with_eos_does_not_stop_the_row(
    name, tiny_transformer, make_method, make_prompts
):
    transformer = tiny_transformer(OPT, seed=3)
    model = InferenceModel(transformer, Options(packed=False))
    prompts = Prompts.of([[EOS], *make_prompts([5, 9]), [EOS, 7, EOS, 8]])
    method = make_method(name, transformer.shape)
    free = decode(method, model, prompts, StopRule(12, ()), Greedy(), CpuDevice())
    stopped = decode(method, model, prompts, StopRule(12, (EOS,)), Greedy(), CpuDevice())
    assert min(map(len, stopped.ids)) > 1
    for ids, whole in zip(stopped.ids, free.ids, strict=True):
        end = whole.index(EOS) + 1 if EOS in whole else 12
        assert ids == whole[:end]


@pytest.fixture(scope="module")
def shape(configured, tiny_model):
    return configured("+method=dense", *tiny_model).model.configured_shape()


@pytest.fixture(scope="module")
def plain_tokenizer(shape):
    return text.train_tokenizer(LINES, shape)


TEMPLATES = {"BOS": "</s> $A", "BOS and EOS": "</s> $A </s>", "marks of its own": "<s> $A <s>"}


def _adding(tokenizer, template):
    """The same tokenizer with a will of its own."""
    own = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()),
        bos_token="</s>",
        eos_token="</s>",
        pad_token="<pad>",
    )
    own.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[("</s>", EOS), ("<s>", 0)]
    )
    assert own.encode("e e")[0] in (0, EOS)
    return own


@pytest.fixture(params=["nothing", *TEMPLATES, "BOS, in a folder"])
def words(request, plain_tokenizer, shape, tmp_path):
    """Tokenizers that add different things by themselves."""
    name, _, folder = request.param.partition(", ")
    if name == "nothing":
        return text.Text(plain_tokenizer, shape)
    own = _adding(plain_tokenizer, TEMPLATES[name])
    if not folder:
        return text.Text(own, shape)
    own.save_pretrained(str(tmp_path))
    return text.load(tmp_path, shape)


PROMPTS = ["e e e", "", "</s>", "</s>e e</s>", "a </s> b", "<pad>e", "<s>e", "é ß"]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_prompt_has_exactly_one_bos_and_it_is_first(prompt, words, plain_tokenizer):
    ids = words.prompt(prompt)
    assert ids[0] == EOS
    assert ids.count(EOS) == 1
    bare = plain_tokenizer.encode(prompt, add_special_tokens=False)
    assert ids[1:] == [token for token in bare if token not in (1, EOS)]


@pytest.mark.parametrize("target", PROMPTS)
def test_a_target_has_exactly_one_eos_and_it_is_last(target, words):
    ids = words.target(target)
    assert ids[-1] == EOS
    assert ids.count(EOS) == 1


def test_text_survives_ids_and_ends_at_the_first_eos(words):
    line = "Alder Hut is a small, é ß."
    ids = words.prompt(line)
    assert words.decode(ids[1:]) == line
    assert words.decode([*ids[1:], EOS, *ids[1:]]) == line
    assert words.decode([EOS]) == ""


def test_bytes_have_one_bos_too(shape):
    words = text.Text(text.ByteTokenizer(shape.vocab_size), shape)
    ids = words.prompt("</s>é")
    assert ids == [EOS, *(byte + 4 for byte in "</s>é".encode())]
    assert words.decode(ids[1:]) == "</s>é"


# ---- the position table ----


@pytest.fixture
def random_run(configured, tiny_model, tmp_path):
    """``random_run(*overrides)``: a configuration of random weights and few examples."""

    def make(*overrides, method="dense"):
        return configured(
            f"+method={method}",
            *tiny_model,
            "model.weights=random",
            "task.train_pairs=50",
            "task.limit=6",
            "decode=fixed",
            "decode.max_new_tokens=5",
            "meter.batch_size=4",
            "meter.warmups=0",
            "meter.repeats=1",
            "verbosity=quiet",
            f"results_dir={tmp_path}",
            *overrides,
        )

    return make


@pytest.fixture(scope="module")
def prompt_lengths():
    """Example id -> tokens of its prompt under the byte tokenizer, BOS included."""
    examples = demo.Task(demo.Params(1)).examples("validation")[:6]
    return {example.id: 1 + len(example.prompt.encode()) for example in examples}


def test_a_prompt_beyond_the_table_is_refused_before_any_weight_is_read(
    random_run, prompt_lengths, monkeypatch
):
    monkeypatch.setattr(models, "load", lambda *_: pytest.fail("weights were read"))
    longest = max(prompt_lengths, key=prompt_lengths.get)
    positions = prompt_lengths[longest] + 5
    config = random_run(f"model.shape.max_positions={positions - 1}")
    with pytest.raises(InputError) as caught:
        run(config)
    told = str(caught.value)
    assert f"example {longest}: {prompt_lengths[longest]} tokens + 5 new" in told
    assert f"{positions - 1} in all" in told
    assert "decode.max_new_tokens" in told
    prepare(plan(random_run(f"model.shape.max_positions={positions}")))


def test_a_run_may_fill_the_table_to_its_end(random_run, prompt_lengths):
    positions = max(prompt_lengths.values()) + 5
    attempt = run(random_run(f"model.shape.max_positions={positions}"))
    assert attempt.header().columns["tokens"] == 6 * 5


def test_without_examples_there_is_a_refusal_too(random_run, monkeypatch):
    monkeypatch.setattr(demo.Task, "examples", lambda *_: [])
    # Examples are read once for all runs of a process.
    planning._decoded.cache_clear()
    with pytest.raises(InputError, match="no examples"):
        prepare(plan(random_run()))


@pytest.mark.parametrize("device", [CpuDevice(), LateDevice()], ids=["at once", "one round late"])
@pytest.mark.parametrize("name", ["dense", "skipdecode"])
def test_a_finished_row_never_runs_past_its_prompt_and_limit(
    name, device, tiny_transformer, make_method, make_prompts
):
    lengths, limit = [9, 2, 5], 14
    transformer = tiny_transformer(OPT, seed=1, max_positions=max(lengths) + limit)
    model = InferenceModel(transformer, Options(packed=False, checked_cache=True))
    prompts = Prompts.of(make_prompts(lengths))
    method = make_method(name, transformer.shape)
    free = decode(method, model, prompts, StopRule(limit, ()), Greedy(), device)
    # A token of row 0 that no other row shows ends row 0 alone, and early.
    others = set(free.ids[1]) | set(free.ids[2])
    end = next(i for i, token in enumerate(free.ids[0]) if token not in others)
    assert end < limit - 4
    rule = StopRule(limit, (free.ids[0][end],))

    steps, embed = [], model.embed
    model.embed = lambda ids, at: steps.append(at.ids[:, 0].tolist()) or embed(ids, at)
    decoded = decode(method, model, prompts, rule, Greedy(), device)
    assert decoded.ids == [free.ids[0][: end + 1], *free.ids[1:]]
    assert len(steps) == limit - 1
    for row, length in enumerate(lengths):
        at = [step[row] for step in steps]
        assert max(at) <= length + limit - 1
        if row:
            assert at == list(range(length, length + limit - 1))
    # Held at the position of its last token from the round on in which the method hears of it.
    last = lengths[0] + end - 1
    held = [step[0] for step in steps[end:]]
    assert set(held) == {last}


# ---- numbers that go bad ----


@pytest.fixture(scope="module")
def saved(shape, tmp_path_factory):
    """``saved(change, **fields)``: a checkpoint folder; ``change`` alters its weights in place."""
    pairs = demo.Task(demo.Params(60)).training_pairs()
    tokenizer = text.train_tokenizer((pair.prompt for pair in pairs), shape)

    def make(change, **fields):
        transformer = Transformer(replace(shape, **fields)).initialise(0)
        with torch.no_grad():
            change(transformer)
        folder = tmp_path_factory.mktemp("saved")
        checkpoint.save(transformer, folder)
        tokenizer.save_pretrained(str(folder))
        return folder

    return make


@pytest.fixture
def poisoned(saved, shape):
    """A checkpoint that is NaN for a token of some prompts, who these are, and a whole one."""
    folder = saved(lambda transformer: None, tied_embeddings=False)
    words = text.load(folder, shape)
    examples = demo.Task(demo.Params(1)).examples("validation")[:6]
    prompts = {example.id: words.prompt(example.prompt) for example in examples}
    having = {
        token: [name for name, ids in prompts.items() if token in ids]
        for token in range(shape.vocab_size)
    }
    token = next(token for token, names in having.items() if len(names) == 2)

    def spoil(transformer):
        # The head is apart from the embedding: else the token's logit would be NaN in every row.
        transformer.embedding.weight[token] = torch.nan

    return saved(spoil, tied_embeddings=False), having[token], folder


def test_a_bad_number_names_the_example_and_leaves_no_result(poisoned, random_run, tmp_path):
    folder, bad, whole = poisoned
    # One new token: nothing that was generated is read.
    settings = ("model.weights=checkpoint", "decode.max_new_tokens=1", "meter.batch_size=8")
    config = random_run(*settings, f"model.checkpoint={folder}")
    with pytest.raises(InvalidRunError, match=rf"examples: {', '.join(bad)}$"):
        run(config)
    [attempt] = tmp_path.glob("*/1")
    failure = (attempt / "failure.txt").read_text()
    assert "InvalidRunError" in failure
    assert not (attempt / "header.json").exists()
    assert not (attempt / "batches.jsonl").exists()
    # The same with whole weights is fine.
    assert run(random_run(*settings, f"model.checkpoint={whole}")).status() == "done"


def test_a_bad_number_ends_the_process_with_1(poisoned, call, tiny_model, tmp_path):
    folder, bad, _ = poisoned
    ended = call(
        "+method=dense",
        *tiny_model,
        f"model.checkpoint={folder}",
        "task.limit=6",
        "decode.max_new_tokens=1",
        "meter.warmups=0",
        f"results_dir={tmp_path}",
    )
    assert ended.code == 1
    assert f"examples: {', '.join(bad)}" in ended.err
    assert "Traceback" not in ended.err
    assert ended.out == ""


def test_rows_that_end_with_their_first_token_have_no_time_per_token(saved, random_run):
    def always_eos(transformer):
        transformer.final_norm.weight.zero_()
        transformer.final_norm.bias.copy_(100.0 * transformer.embedding.weight[EOS])

    folder = saved(always_eos)
    config = random_run(
        "model.weights=checkpoint", f"model.checkpoint={folder}", "decode.length=until_eos"
    )
    attempt = run(config)
    columns = attempt.header().columns
    assert [leg.ids for batch in attempt.batches() for leg in batch.legs.values()] == [
        [[EOS]] * 4,
        [[EOS]] * 2,
    ]
    assert columns["tokens"] == 6
    assert columns["ttft_s"] > 0
    for name in ("tpot_s", "decode_tokens_per_s", "layers_per_token", "flops_required_per_token"):
        assert columns[name] is None
    assert json.dumps(columns)
