"""Prompt lookup: the search against a plain one; dense ids, the plain law and the costs."""

import random

import pytest
import torch

from bench.meters.device import CpuDevice
from methods.contract import Limits
from methods.engine.cache import Prompts
from methods.engine.drawing import Warp
from methods.engine.ledger import Sums
from methods.engine.sampling import Greedy, Sampled
from methods.prompt_lookup.history import History
from methods.prompt_lookup.params import Params, resolve
from tests.engine.plain_exit import HostReads
from tests.methods.speculation import (
    NEW,
    PROMPTS,
    LateDevice,
    bind,
    columns,
    count_writes,
    decode_until,
    may_follow,
    plain_law,
    rooms,
    total,
)

MATCHES = ("latest", "first")


def _copied(ids, sizes, match, wanted):
    """By trying every place for every n-gram."""
    for size in sizes:
        places = [at for at in range(size, len(ids)) if ids[at - size : at] == ids[-size:]]
        if places:
            whole, place = list(ids), max(places) if match == "latest" else min(places)
            for step in range(wanted):
                whole.append(whole[place + step])
            return whole[len(ids) :]
    return []


# --- the search -----------------------------------------------------------------------------------


@pytest.mark.parametrize("match", MATCHES)
def test_a_draft_is_what_a_plain_search_finds_however_the_tokens_came(match):
    draw, lengths = random.Random(3), set()
    for _ in range(300):
        ids = [draw.randrange(draw.choice([2, 4, 9])) for _ in range(draw.randint(1, 40))]
        low = draw.randint(1, 3)
        sizes = range(draw.randint(low, 5), low - 1, -1)
        history, seen = History(sizes, match), 0
        while seen < len(ids):
            more = draw.randint(1, 6)
            history.extend(ids[seen : seen + more])
            seen += more
            wanted = draw.randint(0, 12)
            found = history.draft(wanted)
            assert found == _copied(ids[:seen], sizes, match, wanted)
            lengths.add((len(found), wanted))
        assert history.ids == ids
    assert {(12, 12), (0, 12), (0, 0)} <= lengths


@pytest.mark.parametrize(
    ("match", "ids", "draft"),
    [
        ("latest", [5, 6, 1, 5, 6, 2, 3, 5, 6], [2, 3, 5, 6, 2, 3]),
        ("first", [5, 6, 1, 5, 6, 2, 3, 5, 6], [1, 5, 6, 2, 3, 5]),
        ("latest", [7, 7], [7, 7, 7, 7, 7, 7]),
        ("latest", [9, 4, 8, 4], [8, 4, 8, 4, 8, 4]),
        ("latest", [6, 4, 9, 8, 4], [9, 8, 4, 9, 8, 4]),
        ("latest", [6, 4, 9], []),
        ("latest", [3], []),
    ],
    ids=[
        "two tokens, the latest place",
        "two tokens, the first place",
        "a token that repeats itself",
        "a copy that meets its own end",
        "one token where two are not found",
        "nothing is found",
        "one token alone",
    ],
)
def test_a_draft_by_hand(match, ids, draft):
    history = History((2, 1), match)
    history.extend(ids)
    assert history.draft(6) == draft


# --- decoding -------------------------------------------------------------------------------------


@pytest.fixture
def run(make_method, drive):
    """``run(transformer, prompts, new, name, **settings)``: what was decoded, and the model."""

    def decoded(transformer, prompts, new=NEW, name="prompt_lookup", chooser=None, **settings):
        model = bind(transformer)
        method = make_method(name, transformer.shape, **settings)
        return drive(method, model, prompts, new, chooser), model

    return decoded


@pytest.fixture
def repeating(tiny_transformer):
    """A model whose output depends on little but the last token, and so soon goes in circles."""
    transformer = tiny_transformer("a Llama with grouped heads", seed=2, vocab_size=20)
    with torch.no_grad():
        for block in transformer.blocks:
            block.out.weight.mul_(0.02)
    return transformer.double()


@pytest.fixture
def circles(repeating, run, make_prompts):
    """Prompts that end in what the model gives for them: some hold a turn of their circle."""
    prompts, ends = make_prompts(PROMPTS, vocab_size=20, seed=1), (0, 9, 0, 4, 12)
    rows = run(repeating, prompts, name="dense")[0].rows
    return [prompt + row[:more] for prompt, row, more in zip(prompts, rows, ends, strict=True)]


@pytest.mark.parametrize("match", MATCHES)
def test_ids_are_dense_for_random_prompts(shape_name, tiny_transformer, run, make_prompts, match):
    # No position more than prompt and limit need; few ids, so that some n-gram is found.
    transformer = tiny_transformer(shape_name, max_positions=32 + NEW, vocab_size=9)
    prompts = make_prompts(PROMPTS, vocab_size=9, seed=2)
    expected = run(transformer, prompts, name="dense")[0].rows
    for most in (1, 4, 10):
        settings = {"num_speculations": most, "match": match}
        decoded, _ = run(transformer, prompts, **settings)
        assert decoded.rows == expected
        assert total(decoded.rounds, "accepted") < total(decoded.rounds, "drafted")
        for row, prompt in enumerate(prompts[:3]):
            assert run(transformer, [prompt], **settings)[0].rows == [expected[row]]


def test_text_that_goes_in_circles_is_copied_and_the_ids_are_dense_at_every_limit(
    repeating, run, circles
):
    for new in (1, 2, 3, 4, 7, NEW, 30):
        expected = run(repeating, circles, new, name="dense")[0].rows
        decoded, model = run(repeating, circles, new)
        assert decoded.rows == expected
        assert all(extent.keys <= max(map(len, circles)) + new for *_, extent in model.ledger.calls)
        for drafted, kept in zip(
            *(columns(decoded.rounds, name) for name in ("drafted", "accepted")), strict=True
        ):
            room = rooms(kept, 10, new)
            # A draft is as long as there is room, or there is none.
            assert all(count in (0, most) for count, most in zip(drafted, room, strict=True))
        for answer in decoded.rounds[1:]:
            assert torch.equal(answer.counts, answer.accepted + 1)
    # Thirty tokens in few rounds.
    assert len(decoded.rounds) < 12
    assert total(decoded.rounds, "accepted") > 0.5 * total(decoded.rounds, "drafted")


def test_drafts_are_those_of_a_plain_search_in_the_rows_own_text(repeating, run, circles):
    decoded, _ = run(repeating, circles, 20, num_speculations=6, max_ngram=3, min_ngram=2)
    texts, offered = [list(text) for text in circles], 0
    for before, answer in zip(decoded.rounds, decoded.rounds[1:], strict=False):
        counts = [1] * 5 if before.counts is None else before.counts.tolist()
        for row, text in enumerate(texts):
            text.extend(before.ids[row, : counts[row]].tolist())
            made = len(text) - len(circles[row])
            draft = _copied(text, (3, 2), "latest", max(0, min(6, 20 - made - 1)))
            assert len(draft) == answer.drafted[row]
            agree = [a == b for a, b in zip(draft, answer.ids[row].tolist(), strict=False)]
            assert ([*agree, False]).index(False) == answer.accepted[row]
            offered += len(draft)
    assert offered > 50


def test_what_stands_behind_a_prompt_is_not_copied(repeating, make_method, make_prompts):
    method, model = make_method("prompt_lookup", repeating.shape), bind(repeating)
    # Whatever the first token is, a pad is the same.
    padded = [[2, *range(20)], *make_prompts([21], vocab_size=20)]
    prompts, limits = Prompts(torch.tensor(padded), (1, 21)), Limits(NEW, Greedy())
    decoding = method.decode(model, prompts, limits)
    with torch.inference_mode():
        first, second = next(decoding), decoding.send(None)
    assert first.ids[0].item() != 2
    assert second.drafted[0] == 0


def test_a_row_ends_as_the_dense_one_wherever_in_a_copy_its_eos_stands(
    repeating, make_method, circles
):
    dense, lookup = (make_method(name, repeating.shape) for name in ("dense", "prompt_lookup"))
    whole = decode_until(dense, repeating, circles).ids
    for stop in {ids[at] for ids in whole for at in (0, 1, 2, 5)}:
        expected = decode_until(dense, repeating, circles, [stop]).ids
        assert expected != whole
        for device in (CpuDevice(), LateDevice()):
            assert decode_until(lookup, repeating, circles, [stop], device).ids == expected


def test_what_rows_required_is_what_they_cost_alone(repeating, make_method, circles):
    method = make_method("prompt_lookup", repeating.shape, num_speculations=4)
    together = decode_until(method, repeating, circles)
    alone = [decode_until(method, repeating, [prompt]) for prompt in circles]
    assert together.ids == [each.ids[0] for each in alone]
    assert all(each.decode_required == each.decode_executed for each in alone)
    assert together.decode_required == sum((each.decode_required for each in alone), start=Sums())
    assert together.decode_required.head_positions < together.decode_executed.head_positions
    for row, each in enumerate(alone):
        assert sum(together.layers[row][1:]) == each.decode_required.mlp_positions


def test_every_layer_sees_each_token_once_and_a_round_without_drafts_is_a_plain_step(
    repeating, tiny_transformer, make_method, drive, make_prompts, circles
):
    method = make_method("prompt_lookup", repeating.shape)
    model = bind(repeating)
    written = count_writes(model)
    rounds = drive(method, model, [circles[1]], NEW).rounds
    tokens = total(rounds, "drafted") + len(rounds) - 1
    assert written == [len(circles[1]) + tokens] * 4
    # Five-grams are not found in random text: each row steps as the dense one does.
    transformer = tiny_transformer("an OPT")
    costs = []
    for name, settings in (("prompt_lookup", {"max_ngram": 5, "min_ngram": 5}), ("dense", {})):
        model = bind(transformer)
        drive(
            make_method(name, transformer.shape, **settings),
            model,
            make_prompts(PROMPTS, seed=4),
            NEW,
        )
        costs.append((model.ledger.executed(), model.ledger.traffic()))
    assert costs[0] == costs[1]


def test_the_host_reads_once_a_round(repeating, make_method, circles):
    method = make_method("prompt_lookup", repeating.shape)
    model = bind(repeating, checked_cache=False)
    decoding = method.decode(model, Prompts.of(circles), Limits(40, Greedy()))
    with torch.inference_mode():
        next(decoding)
        for _ in range(5):
            with HostReads() as reads:
                decoding.send(torch.tensor([True] * 5))
            assert reads.found == ["tolist"]


def test_sampled_tokens_follow_the_law_of_plain_sampling(tiny_transformer, make_method, drive):
    sizes = {"vocab_size": 8, "num_layers": 2, "width": 8, "num_heads": 2, "ffn_width": 16}
    transformer = tiny_transformer("an OPT", seed=1, **sizes)
    method = make_method("prompt_lookup", transformer.shape, num_speculations=2)
    # Each id has been followed by another: whatever comes first, something is copied.
    number, prompt = 20_000, [2, 5, 3, 7, 1, 0, 4, 6, 2]
    chooser = Sampled(0, range(number), Warp(0.7, None, 0.9), positions=4)
    decoded = drive(method, bind(transformer, checked_cache=False), [prompt] * number, 4, chooser)
    first = decoded.rounds[1]
    assert first.drafted.unique().tolist() == [2]
    assert 0 < first.accepted.sum() < first.drafted.sum()
    rows = [row[:3] for row in decoded.rows]
    assert may_follow(rows, plain_law(transformer, prompt, 3, 0.7, 0.9))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_speculations": 0}, "num_speculations=0: allowed 1 and up"),
        ({"min_ngram": 0}, "min_ngram=0: allowed 1 and up"),
        ({"min_ngram": 3}, r"max_ngram=2: allowed 3 \(min_ngram\) and up"),
    ],
    ids=["no token", "an n-gram of nothing", "a shortest that is longer than the longest"],
)
def test_impossible_settings_are_named_with_what_is_allowed(tiny_shape, settings, text):
    with pytest.raises(ValueError, match=text):
        resolve(Params(**settings), tiny_shape("an OPT"), {})
