"""SkipDecode's teacher-forced pass: each position runs the layers that decoding would run there.

Apart, because training sees whole sequences. One causal pass reproduces cached decoding exactly:
the sets A(t) are nested, so no active query ever asks for a key that an inactive position did not
write, and the active positions of a layer are a prefix of each row.
"""

import torch
from torch import Tensor

from methods.contract import Batch
from methods.engine.transformer import Transformer
from methods.skipdecode.schedule import Schedule


def scheduled_pass(
    model: Transformer, batch: Batch, schedule: Schedule, *, from_prompt: bool
) -> Tensor:
    """The residual stream after the last layer, (B, T, D).

    Args:
        model: the parameters.
        batch: right-padded; the prompt runs at full depth.
        schedule: the budgets.
        from_prompt: t counts from the end of each prompt; else from the start of the row.
    """
    ids, prompts = batch.ids, batch.prompt_lengths
    new = ids.shape[1]
    x, rope = model.embed(ids), model.rope(new)
    at = torch.arange(new, device=ids.device)
    for layer, block in enumerate(model.blocks):
        clock_end = schedule.first_inactive(layer)
        # Leading positions of each row at which this layer is active.
        ends = prompts + clock_end if from_prompt else prompts.clamp(min=clock_end)
        ends = torch.minimum(ends, batch.lengths)
        shortest, longest = int(ends.min()), int(ends.max())
        head = block(x[:, :longest], rope)
        if shortest < longest:
            active = at[:longest] < ends[:, None]
            head = torch.where(active[..., None], head, x[:, :longest])
        x = torch.cat((head, x[:, longest:]), dim=1)
    return x
