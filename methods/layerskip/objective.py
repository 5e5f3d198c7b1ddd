"""LayerSkip's training pass: rows leave out layers at random, and every exit shares one head.

arXiv 2404.16710, section 4.1. Apart, because training sees whole sequences. Not here: the formulas
of rates and weights (``recipe.py``), the loop (``bench/training.py``).
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from methods.contract import Batch, Progress
from methods.engine.transformer import Transformer
from methods.layerskip.params import Params
from methods.layerskip.recipe import (
    dropout_rates,
    enabled_layers,
    loss_scales,
    loss_weights,
    time_scale,
)

Rope = tuple[Tensor, Tensor] | None


def recipe_loss(model: Transformer, batch: Batch, params: Params, progress: Progress) -> Tensor:
    """J: next-token losses of the step's layers, weighted, summed over target tokens.

    Args:
        model: the parameters; layers are dropped only while it is in training mode.
        batch: right-padded.
        params: resolved settings.
        progress: which pass of the training.
    """
    layers, num_rows = len(model.blocks), batch.ids.shape[0]
    weights = weights_at(params, layers, progress)
    kept = kept_rows(params, layers, num_rows, progress, dropping=model.training)
    # One transfer for all layers, so that a GPU is not waited for at each.
    flat = torch.tensor([row for rows in kept for row in rows], device=batch.ids.device)
    indices = torch.split(flat, [len(rows) for rows in kept])
    x, rope = model.embed(batch.ids), model.rope(batch.ids.shape[1])
    total = x.new_zeros((), dtype=torch.float32)
    targets = (batch.ids, batch.prompt_lengths, batch.lengths)
    for layer, block in enumerate(model.blocks):
        run = partial(checkpoint, block, use_reentrant=False) if params.checkpoint_layers else block
        x = run_rows(run, x, rope, indices[layer])
        if layer in weights:
            # The head is computed again on the way back: logits of one layer at a time are held.
            loss = checkpoint(model.target_loss, x, *targets, use_reentrant=False)
            total = total + weights[layer] * loss
    if layers - 1 not in weights:
        # The layers above the highest exit have a gradient, zero, in every process.
        total = total + x[:0].sum()
    return total


def weights_at(params: Params, num_layers: int, progress: Progress) -> dict[int, float]:
    """w(t, l) of the layers that have a loss at this step."""
    assert params.curriculum is not None, f"settings are not resolved: {params}"
    assert params.early_exit_scale is not None, f"settings are not resolved: {params}"
    enabled = enabled_layers(num_layers, params.curriculum, params.rotation, progress)
    scales = loss_scales(num_layers, params.early_exit_scale)
    return loss_weights(scales, enabled, last=params.last_layer)


def kept_rows(
    params: Params, num_layers: int, num_rows: int, progress: Progress, *, dropping: bool
) -> list[list[int]]:
    """For each layer, the rows that run it: M of the paper, one draw for a whole sequence.

    A function of the step alone, never of a process: so that all processes drop as many rows of a
    layer, none waits for another, and a layer that is computed again drops the same.
    """
    rows = list(range(num_rows))
    if not dropping or not params.max_dropout:
        return [rows] * num_layers
    assert params.dropout_time is not None, f"settings are not resolved: {params}"
    scale = time_scale(params.dropout_time, progress)
    # By row first: a row draws the same numbers however many others there are.
    draws = np.random.default_rng([progress.seed, progress.step, progress.micro_batch])
    numbers = draws.random((num_rows, num_layers))
    return [
        [row for row in rows if numbers[row, layer] >= scale * rate]
        for layer, rate in enumerate(dropout_rates(num_layers, params.max_dropout))
    ]


def run_rows(run: Callable[[Tensor, Rope], Tensor], x: Tensor, rope: Rope, rows: Tensor) -> Tensor:
    """One layer on the given rows of (B, T, D), as a smaller batch; the others pass unchanged.

    Kept rows are not scaled up, so that decoding needs no correction.
    """
    if len(rows) == x.shape[0]:
        return run(x, rope)
    if len(rows):
        return x.index_copy(0, rows, run(x[rows], rope))
    # One token, of which nothing is kept: distributed wrappers wait for every layer, and not every
    # attention kernel takes an empty batch.
    nothing = run(x[:1, :1], rope)[:0].expand(0, *x.shape[1:])
    return x.index_copy(0, rows, nothing)
