"""CALM's two stages of training against sums written out plainly."""

import math

import pytest
import torch

from methods.calm.objective import LinearClassifier, agreement_loss, layer_weights, weighted_loss
from methods.engine.confidence import Classifier

ROWS, PROMPTS = [9, 12, 6], [3, 10, 1]


@pytest.fixture
def batch(make_prompts, make_batch):
    return make_batch(make_prompts(ROWS, seed=2), PROMPTS)


def _states(transformer, ids):
    """Behind each layer, (1, T, D), of one row."""
    x, rope = transformer.embed(ids), transformer.rope(ids.shape[1])
    for block in transformer.blocks:
        x = block(x, rope)
        yield x


def _judged(batch):
    """Row of ids, and the positions whose next token is a target's."""
    for ids, start, length in zip(batch.ids, PROMPTS, ROWS, strict=True):
        yield ids[None, :length], range(start - 1, length - 1)


def _plain_weighted_loss(transformer, batch, weights):
    total = 0.0
    for ids, positions in _judged(batch):
        for weight, x in zip(weights, _states(transformer, ids), strict=True):
            scores = transformer.head(x)[0].log_softmax(dim=-1)
            total = total - weight * sum(scores[at, ids[0, at + 1]] for at in positions)
    return total


def test_the_weights_of_eight_layers_are_36ths():
    assert layer_weights(8) == pytest.approx([layer / 36 for layer in range(1, 9)])
    for layers in (1, 6, 24):
        assert sum(layer_weights(layers)) == pytest.approx(1.0)


def test_the_loss_of_stage_1_is_the_weighted_sum_of_all_layers(shape_name, tiny_transformer, batch):
    transformer = tiny_transformer(shape_name, num_layers=8)
    with torch.no_grad():
        found = weighted_loss(transformer, batch).item()
        expected = _plain_weighted_loss(transformer, batch, [i / 36 for i in range(1, 9)]).item()
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_gradients_of_stage_1_are_those_of_the_plain_sum(shape_name, tiny_transformer, batch):
    transformer, found = tiny_transformer(shape_name).double(), []
    for loss in (
        weighted_loss(transformer, batch),
        _plain_weighted_loss(transformer, batch, [0.1, 0.2, 0.3, 0.4]),
    ):
        transformer.zero_grad(set_to_none=True)
        loss.backward()
        found.append({name: p.grad.clone() for name, p in transformer.named_parameters()})
    for name, gradient in found[1].items():
        torch.testing.assert_close(found[0][name], gradient, rtol=1e-4, atol=1e-6)
        assert gradient.any()


def _classifier(seed=3):
    classifier, draw = LinearClassifier(32), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        classifier.linear.weight.copy_(0.1 * torch.randn((1, 32), generator=draw))
        classifier.linear.bias.fill_(0.2)
    return classifier


def test_the_loss_of_stage_2_asks_each_lower_layer_whether_it_chooses_the_last_ones_token(
    shape_name, tiny_transformer, batch
):
    transformer, classifier = tiny_transformer(shape_name, num_layers=5), _classifier()
    weight, bias = classifier.linear.weight[0].tolist(), 0.2
    expected, labels = [], []
    with torch.no_grad():
        # A last layer that adds little, so that the one below agrees now and then.
        for part in (transformer.blocks[-1].out, transformer.blocks[-1].down):
            part.weight.mul_(0.05)
        found = agreement_loss(transformer, batch, classifier).item()
        for ids, positions in _judged(batch):
            states = list(_states(transformer, ids))
            choices = [transformer.head(x)[0].argmax(dim=-1).tolist() for x in states]
            for x, choice in zip(states[:-1], choices[:-1], strict=True):
                for at in positions:
                    label = choice[at] == choices[-1][at]
                    state = x[0, at].tolist()
                    logit = bias + sum(a * b for a, b in zip(weight, state, strict=True))
                    # -log p of what is true.
                    expected.append(math.log1p(math.exp(-logit if label else logit)))
                    labels.append(label)
    assert found == pytest.approx(sum(expected) / 4, rel=1e-5)
    assert len(labels) == 4 * sum(
        length - start for length, start in zip(ROWS, PROMPTS, strict=True)
    )
    assert set(labels) == {True, False}


def test_stage_2_reaches_the_classifier_and_leaves_the_backbone_alone(
    shape_name, tiny_transformer, batch
):
    transformer, classifier = tiny_transformer(shape_name), _classifier()
    agreement_loss(transformer, batch, classifier).backward()
    assert [name for name, p in transformer.named_parameters() if p.grad is not None] == []
    assert all(p.grad.isfinite().all() and p.grad.any() for p in classifier.parameters())


def test_the_trained_classifier_is_the_one_that_decoding_asks():
    classifier = _classifier()
    x = torch.randn((4, 1, 32), generator=torch.Generator().manual_seed(4))
    held = Classifier.of(classifier.tensors(), torch.device("cpu"))
    expected = classifier(x)[:, 0].sigmoid()
    torch.testing.assert_close(held(x), expected, atol=1e-6, rtol=0)
    assert not held.weight.requires_grad
    assert sum(p.numel() for p in classifier.parameters()) == 32 + 1


def test_the_stage_says_what_is_trained(tiny_transformer, make_method, batch):
    transformer = tiny_transformer("an OPT")
    first = make_method("calm", transformer.shape)
    second = make_method("calm", transformer.shape, stage="classifier")
    assert first.companion() is None
    with torch.no_grad():
        whole = first.objective(transformer, batch, 0.5).total
        assert whole.item() == weighted_loss(transformer, batch).item()
        learner = second.companion()
        learner.linear.weight.fill_(0.05)
        found = second.objective(transformer, batch, 0.5).total
        assert found.item() == agreement_loss(transformer, batch, learner).item() != whole.item()
