"""CALM decoding (arXiv 2207.07061): a token leaves at the first layer that is confident enough.

Differs from the official code, which follows the paper less than this does: the threshold's
position is passed on, the state that is copied is that of the layer left, and a batch can leave row
by row (the code lets it leave at its least confident row, our ``batch_policy=all``).
"""

from collections.abc import Generator, Mapping, Sequence
from itertools import count

import torch
from torch import Tensor

from methods.calm.objective import LinearClassifier, agreement_loss, weighted_loss
from methods.calm.params import Params, exit_layers
from methods.calm.threshold import threshold_at
from methods.contract import Batch, Limits, LiveRows, Loss, Progress, Round
from methods.engine.cache import Positions, Prompts
from methods.engine.confidence import Classifier, softmax_gap, state_cosine
from methods.engine.early_exit import Answer, Rule, leave_singly, leave_together
from methods.engine.inference import InferenceModel
from methods.engine.lockstep import Lockstep
from methods.engine.shape import Shape
from methods.engine.transformer import Transformer


class Method:
    """Confident early exit, row by row or as a whole batch."""

    def __init__(self, params: Params, shape: Shape) -> None:
        self.params = params
        self.num_layers = shape.num_layers
        self.exits = exit_layers(params, shape.num_layers)
        self.classifier: Classifier | None = None
        trains_classifier = params.stage == "classifier"
        self.learner = LinearClassifier(shape.width) if trains_classifier else None

    def attach(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Takes the exit classifier that was trained on the model's weights."""
        self.classifier = Classifier.of(tensors, device)

    def decode(
        self, model: InferenceModel, prompts: Prompts, limits: Limits
    ) -> Generator[Round, LiveRows, None]:
        """One token a round; skipped layers hold keys and values of the copied state."""
        cache = model.new_cache(prompts, limits.max_new_tokens)
        ids = limits.chooser.choose(model.head(model.prefill(prompts, cache)), 0)
        live = yield Round(ids, self.num_layers)
        step = Lockstep(model, cache)
        for index in count(1):
            positions = step.advance(live)
            x = model.embed(step.kept(ids), positions)
            rule = self._rule(model, index, limits.max_new_tokens)
            if self.params.batch_policy == "rows":
                left = leave_singly(model, x, positions, cache, rule)
            else:
                left = leave_together(model, x, positions, cache, rule, step.live)
            ids = limits.chooser.choose(left.logits, index)
            run = torch.tensor(left.run)[:, None]
            live = yield Round(ids, run, layers_needed=left.depths)

    def _rule(self, model: InferenceModel, index: int, max_new_tokens: int) -> Rule:
        """Leave at the first exit layer whose confidence reaches this step's threshold."""
        if not self.exits:
            return _never
        threshold = threshold_at(self.params, index, max_new_tokens)

        def rule(
            depth: int, x: Tensor, before: Tensor, at: Positions, rows: Sequence[int]
        ) -> Answer | None:
            if depth not in self.exits:
                return None
            if self.params.measure == "softmax":
                logits = model.head(x, at)
                return Answer(softmax_gap(logits) >= threshold, logits)
            return Answer(self._cheap(model, x, before, at) >= threshold)

        return rule

    def _cheap(self, model: InferenceModel, x: Tensor, before: Tensor, at: Positions) -> Tensor:
        if self.params.measure == "state":
            return model.check(lambda: state_cosine(x, before), at)
        classifier = self.classifier
        if classifier is None:
            raise ValueError("measure=classifier needs the classifier trained on these weights")
        return model.check(lambda: classifier(x), at)

    def companion(self) -> LinearClassifier | None:
        """Stage 2 trains this in place of the model, whose weights are frozen."""
        return self.learner

    def objective(self, model: Transformer, batch: Batch, progress: Progress) -> Loss:
        """Stage 1: losses of all layers, weighted. Stage 2: the classifier's agreement."""
        if self.learner is not None:
            return Loss(agreement_loss(model, batch, self.learner))
        return Loss(weighted_loss(model, batch))


def _never(*_: object) -> None:
    """Every layer for every row, and nothing is checked."""
