"""Weights into memory: the transformer and the tokenizer of a leg.

Apart from ``weights.py``, which finds them without torch. Not here: reading tensors
(``methods/engine/checkpoint.py``).
"""

from pathlib import Path

import torch

from bench import text
from bench.weights import Weights, not_a_checkpoint
from methods.engine import checkpoint, hf
from methods.engine.bound import Options
from methods.engine.files import CheckpointError
from methods.engine.transformer import Transformer


def load(weights: Weights, dtype: torch.dtype | None = None) -> Transformer:
    """Reads or draws the weights.

    Raises:
        InputError: for a folder that is no complete checkpoint.
    """
    if weights.folder is None:
        return Transformer(weights.shape).initialise(weights.seed)
    try:
        return checkpoint.load(weights.folder, dtype)
    except CheckpointError as error:
        raise not_a_checkpoint(weights.folder, error) from error


def load_peer(weights: Weights, options: Options) -> hf.HfModel:
    """The weights in transformers' own model, for a peer.

    Raises:
        InputError: for a folder that is no complete checkpoint.
    """
    if weights.folder is None:
        return hf.from_transformer(load(weights), options)
    try:
        return hf.from_folder(weights.folder, options)
    except CheckpointError as error:
        raise not_a_checkpoint(weights.folder, error) from error


def text_of(weights: Weights, tokenizer: str | None) -> text.Text:
    """The tokenizer: the named folder's, the checkpoint's, or bytes for random weights."""
    folder = weights.folder if tokenizer is None else Path(tokenizer).expanduser()
    if folder is None:
        return text.Text(text.ByteTokenizer(weights.shape.vocab_size), weights.shape)
    return text.load(folder, weights.shape)
