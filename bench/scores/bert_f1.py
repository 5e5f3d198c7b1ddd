"""BERTScore F1: how well words of text and best reference match in the vectors of a language model.

Apart, because it is one score, with a library and a model of its own. roberta-large, layer 17, no
idf weights, not rescaled by a baseline: values lie near 0.8 to 1. Mean over examples, as a share.
Nothing is fetched while scoring: library and model must be there when a run starts. Not here:
other models.
"""

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from huggingface_hub import try_to_load_from_cache

from bench.errors import InputError
from bench.scores.contract import mean
from bench.tasks.contract import Example

unit: Literal["points", "fraction"] = "fraction"
better: Literal["higher", "lower"] = "higher"
value = mean

_MODEL, _LAYER = "roberta-large", 17


def check() -> None:
    """Refuses a start without what is needed.

    Raises:
        InputError: naming what to install or to fetch.
    """
    try:
        version("bert-score")
    except PackageNotFoundError as error:
        raise InputError(
            "Score bert_f1 needs a package that is not installed",
            got=error,
            allowed="pip install 'skipbench[bertscore]', or scores without bert_f1",
            where="task.scores",
        ) from error
    if not isinstance(try_to_load_from_cache(_MODEL, "config.json"), str):
        raise InputError(
            "Score bert_f1 needs a model that is not in the local cache",
            got=f"no {_MODEL}",
            allowed=f"hf download {_MODEL}, or scores without bert_f1",
            where="task.scores",
        )


@cache
def _scorer() -> Any:  # noqa: ANN401  # the library has no types
    # Here and not above: it is an extra.
    from bert_score import BERTScorer

    return BERTScorer(model_type=_MODEL, num_layers=_LAYER, idf=False)


def statistics(text: str, example: Example) -> tuple[float, ...]:
    """F1 against the best reference, and 1 for the example; an empty text is 0."""
    if not text:
        return (0.0, 1.0)
    _, _, f1 = _scorer().score([text], [list(example.references)])
    return (float(f1[0]), 1.0)
