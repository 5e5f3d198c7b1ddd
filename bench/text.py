"""Text to ids and back, with exactly one BOS; and the tokenizer of a model built from scratch.

Apart, because tokenizers differ in what they add by themselves, and a second or missing BOS
changes every number. Not here: prompts, which belong to tasks.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from bench.errors import InputError
from methods.engine.shape import Shape

# As in OPT: the end-of-text token is also the first one, `<s>` is unused.
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")

_ANCHOR = "x"


class Text:
    """A tokenizer with a model's BOS and EOS.

    Args:
        tokenizer: of transformers, or ``ByteTokenizer``; None where nothing is text.
        shape: gives the special ids.
    """

    def __init__(self, tokenizer: Any, shape: Shape) -> None:  # noqa: ANN401  # two kinds, or none
        self.tokenizer = tokenizer
        self.bos = shape.bos_token_id
        self.stop_ids = shape.eos_token_ids
        self._special = {shape.bos_token_id, shape.pad_token_id, *shape.eos_token_ids}

    def prompt(self, text: str) -> list[int]:
        """Ids of a prompt: one BOS where the model has one, then the text."""
        return [*([] if self.bos is None else [self.bos]), *self._plain(text)]

    def target(self, text: str) -> list[int]:
        """Ids of a target, ended by EOS."""
        return [*self._plain(text), *self.stop_ids[:1]]

    def decode(self, ids: Sequence[int]) -> str:
        """The text up to the first stop id, outer white space removed."""
        text: str = self.tokenizer.decode(self._before_stop(ids), skip_special_tokens=True)
        return text.strip()

    def verbatim(self, ids: Sequence[int]) -> str:
        """The text up to the first stop id with all its white space, as it goes on from a prompt.

        Some tokenizers drop a space at the start of what they decode: so it is decoded behind
        another text.
        """
        start = self._plain(_ANCHOR)
        before, whole = (
            self.tokenizer.decode(
                shown, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            for shown in (start, [*start, *self._before_stop(ids)])
        )
        text: str = whole[len(before) :]
        return text

    def _before_stop(self, ids: Sequence[int]) -> list[int]:
        end = next((i for i, token in enumerate(ids) if token in self.stop_ids), len(ids))
        return list(ids[:end])

    def _plain(self, text: str) -> list[int]:
        """Ids of the text alone; a special token spelt out in a text is dropped."""
        # Whether a text is too long is decided elsewhere, by the model's positions.
        ids = self.tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return [token for token in ids if token not in self._special]


def until(text: str, stops: Sequence[str]) -> str:
    """The text before the first of these."""
    ends = [at for at in map(text.find, stops) if at >= 0]
    return text[: min(ends, default=len(text))]


class ByteTokenizer:
    """One id a byte, for random weights: lengths mean something, words do not.

    Args:
        vocab_size: at least the first id + 256.
    """

    FIRST = 4

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < self.FIRST + 256:
            raise InputError(
                "The byte tokenizer does not fit the model",
                got=f"vocab_size={vocab_size}",
                allowed=f"{self.FIRST + 256} and up",
                where="model.shape.vocab_size",
            )

    def encode(
        self, text: str, *, add_special_tokens: bool = False, verbose: bool = False
    ) -> list[int]:
        """UTF-8 bytes, shifted past the special ids."""
        return [byte + self.FIRST for byte in text.encode()]

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        clean_up_tokenization_spaces: bool = False,
    ) -> str:
        """Bytes back to text; ids that are no byte are left out."""
        values = [token - self.FIRST for token in ids]
        return bytes(v for v in values if 0 <= v < 256).decode(errors="replace")


def load(folder: Path, shape: Shape) -> Text:
    """The tokenizer of a checkpoint folder.

    Raises:
        InputError: if the folder has none.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            "Cannot load a tokenizer",
            got=f"{folder}: {str(error).splitlines()[0]}",
            allowed="a folder with tokenizer.json or the files of its class",
            where="model.tokenizer",
        ) from error
    return Text(tokenizer, shape)


def train_tokenizer(texts: Iterable[str], shape: Shape) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of ``shape.vocab_size`` ids for ``texts``."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # the library leaves it untyped
        tokenizer_object=bpe,
        bos_token="</s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=shape.max_positions,
    )
