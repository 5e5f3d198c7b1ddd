"""Early exit written out plainly: no cache, no batch, one token and one layer at a time.

What the engine's early exit is compared with, in the tests of the engine and of the methods. Uses
the transformer's modules, and none of the engine's attention, rotation or slots.
"""

import dataclasses

import torch
import torch.nn.functional as functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from methods.engine.layer import rope_frequencies
from methods.engine.sampling import Greedy
from methods.engine.shape import POSITION_OFFSET
from methods.engine.transformer import Transformer


class PlainRow:
    """One row; remembers what went into each layer at each position, and computes the rest anew.

    Attributes:
        inputs: by layer, the state that went in at each position, (D,) each: for a token that left
            behind layer j, its state there is what goes into every layer above.
        x: the current token's state, (D,).
        depth: layers that it has run.
        logits: behind the prompt.
    """

    def __init__(self, transformer, prompt):
        self.model, self.shape = transformer, transformer.shape
        self.inputs = [[] for _ in transformer.blocks]
        for token in prompt:
            self.start(token)
            while self.depth < len(self.inputs):
                self.run()
        self.logits = self.leave()

    @torch.no_grad()
    def start(self, token):
        """The next token of the row."""
        model, position = self.model, len(self.inputs[0])
        self.depth, self.x = 0, model.embedding(torch.tensor(token))
        if self.shape.projects_embedding:
            self.x = model.project_in(self.x)
        if self.shape.positions == "learned":
            self.x = self.x + model.position_embedding.weight[position + POSITION_OFFSET]

    @torch.no_grad()
    def run(self):
        """One more layer for the current token; its state behind it and before it."""
        before, block = self.x, self.model.blocks[self.depth]
        self.inputs[self.depth].append(before)
        pre = self.shape.norm_placement == "pre"
        x = before + block.out(self._attended(self.depth))
        x = x if pre else block.attention_norm(x)
        hidden = block.up(block.mlp_norm(x) if pre else x)
        if self.shape.gated_mlp:
            gate, up = hidden.chunk(2)
            hidden = functional.silu(gate) * up
        else:
            hidden = hidden.clamp(min=0)
        x = x + block.down(hidden)
        self.x = x if pre else block.mlp_norm(x)
        self.depth += 1
        return self.x, before

    @torch.no_grad()
    def leave(self):
        """The current token leaves: its state goes into every layer above. Its logits, (V,)."""
        for above in self.inputs[self.depth :]:
            above.append(self.x)
        return self.model.head(self.x)

    @torch.no_grad()
    def keys_and_values(self, layer):
        """Of every position, from the layer's own norm and projections: (S, kv, head_dim) each."""
        _, keys, values = self._projected(layer)
        return self._rotated(keys), values

    def fork(self):
        """A copy that goes its own way."""
        other = object.__new__(PlainRow)
        vars(other).update(vars(self), inputs=[list(states) for states in self.inputs])
        return other

    def _projected(self, layer):
        block, shape, states = self.model.blocks[layer], self.shape, torch.stack(self.inputs[layer])
        if shape.norm_placement == "pre":
            states = block.attention_norm(states)
        parts = block.qkv(states).split([shape.query_width, shape.kv_width, shape.kv_width], dim=-1)
        return [part.unflatten(-1, (-1, shape.head_dim)) for part in parts]

    def _rotated(self, heads):
        """Rotary positions as complex numbers; (S, heads, head_dim), at positions 0..S-1."""
        if self.shape.positions == "learned":
            return heads
        angles = torch.arange(len(heads))[:, None] * rope_frequencies(self.shape)
        turned = torch.complex(*heads.chunk(2, dim=-1)) * torch.polar(
            torch.ones_like(angles), angles
        ).unsqueeze(1)
        return torch.cat((turned.real, turned.imag), dim=-1)

    def _attended(self, layer):
        queries, keys, values = self._projected(layer)
        query, keys = self._rotated(queries)[-1], self._rotated(keys)
        group = self.shape.num_heads // self.shape.num_kv_heads
        keys, values = (part.repeat_interleave(group, dim=1) for part in (keys, values))
        scores = torch.einsum("hd,shd->hs", query, keys) / self.shape.head_dim**0.5
        return torch.einsum("hs,shd->hd", scores.softmax(dim=-1), values).flatten()


def cut(transformer, layers):
    """A smaller model of its own: the first layers, the final norm and the head."""
    smaller = Transformer(dataclasses.replace(transformer.shape, num_layers=layers))
    smaller.to(transformer.head_weight.dtype)
    kept = smaller.state_dict().keys()
    smaller.load_state_dict({name: transformer.state_dict()[name] for name in kept})
    return smaller.eval()


class Recording(Greedy):
    """Greedy, and keeps the logits that it was given."""

    def __init__(self):
        super().__init__()
        self.logits = []

    def choose(self, logits, index):
        self.logits.append(logits)
        return super().choose(logits, index)


class HostReads(TorchDispatchMode):
    """Counts what would make the host wait for a GPU: values read back, masks and lists as index.

    Attributes:
        found: names of the operations.
    """

    def __init__(self):
        super().__init__()
        self.found = []
        self._functions = _ReadingFunctions(self.found)

    def __enter__(self):
        self._functions.__enter__()
        return super().__enter__()

    def __exit__(self, *given):
        super().__exit__(*given)
        self._functions.__exit__(*given)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if masks or name in ("nonzero", "_local_scalar_dense", "masked_select"):
            self.found.append(name)
        return func(*args, **kwargs or {})


class _ReadingFunctions(TorchFunctionMode):
    """What is not seen below: on a CPU ``tolist`` calls no operation, and a list is a tensor."""

    def __init__(self, found):
        super().__init__()
        self.found = found

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        listed = name in ("__getitem__", "__setitem__") and _holds_a_list(args[1])
        if listed or name in ("tolist", "numpy", "cpu"):
            self.found.append(name)
        return func(*args, **kwargs or {})


def _holds_a_list(index):
    return any(isinstance(part, list) for part in (index if isinstance(index, tuple) else (index,)))
