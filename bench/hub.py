"""The Hugging Face hub: a model's files, from the local cache or fetched into it.

Apart, and free of torch, so that a login node can fetch what a job without network will read. Not
here: which model and revision a config names (``weights.py``).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from bench.errors import InputError
from methods.engine.files import CheckpointError, weight_files, weight_set

# Config and tokenizer; the indices of weight files are chosen with their weights.
_SMALL_ENDINGS = (".json", ".txt", ".model")
_INDEX_ENDING = ".index.json"
TIMEOUT_S = 10
# What the HTTP library beneath raises without a connection: it has changed between releases.
_HTTP_ERROR: type[Exception] = HfHubHTTPError.__bases__[0]
FAULTS = (HfHubHTTPError, HFValidationError, _HTTP_ERROR, OSError)


def snapshot(hub_id: str, revision: str | None) -> Path:
    """The folder of a model's files in the local cache; fetches what is missing.

    Without a reachable hub, or without the right to ask it, a complete cached copy is taken.

    Args:
        hub_id: owner and name.
        revision: branch, tag or commit; None for the default branch.

    Raises:
        InputError: if the files are neither cached nor to be had.
    """
    try:
        siblings = HfApi().model_info(hub_id, revision=revision, timeout=TIMEOUT_S).siblings or []
        wanted = files_to_fetch([file.rfilename for file in siblings])
        # By the revision, not by its commit: so the cache learns where the branch stands.
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=wanted))
    except FAULTS as error:
        held = cached(hub_id, revision)
        if held is None:
            raise _refusal(hub_id, revision, error) from error
        told = _first_line(error)
        sys.stderr.write(f"{hub_id}: the hub gives nothing ({told}); cached: {held.name}\n")
        return held


def commit_of(hub_id: str, revision: str | None) -> str | None:
    """The commit that the local cache holds of a revision; None without one. Asks no network."""
    folder = _cached_folder(hub_id, revision)
    return None if folder is None else folder.name


def files_to_fetch(names: Sequence[str]) -> list[str]:
    """Those of a repository's files that are needed: one set of weights, config and tokenizer."""
    form = weight_set(names)
    wanted = [
        name
        for name in names
        if "/" not in name and name.endswith(_SMALL_ENDINGS) and not name.endswith(_INDEX_ENDING)
    ]
    if form is None:
        return sorted(wanted)
    if form.single in names:
        return sorted([*wanted, form.single])
    shards = [name for name in names if form.shard.fullmatch(name)]
    return sorted([*wanted, form.index, *shards])


def _cached_folder(hub_id: str, revision: str | None) -> Path | None:
    """The cached folder of a revision, whole or not; it bears the commit's name."""
    try:
        config = try_to_load_from_cache(hub_id, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None


def cached(hub_id: str, revision: str | None) -> Path | None:
    """The folder of a complete copy in the local cache; None without one. Asks no network."""
    folder = _cached_folder(hub_id, revision)
    if folder is None:
        return None
    try:
        weight_files(folder)
    except CheckpointError:
        return None
    return folder


def _refusal(hub_id: str, revision: str | None, error: Exception) -> InputError:
    page = f"https://huggingface.co/{hub_id}"
    allowed = "a reachable hub, model.checkpoint=FOLDER, or model.weights=random"
    where = "model.checkpoint, model.weights"
    # A gated repository is a kind of repository not found: it comes first.
    if isinstance(error, GatedRepoError):
        allowed = (
            f"an account that has accepted the licence on {page}, and its token: "
            "hf auth login (once: huggingface-cli login), or HF_TOKEN in the environment"
        )
    elif isinstance(error, RevisionNotFoundError):
        allowed, where = f"a branch, tag or commit of {page}", "model.revision"
    elif isinstance(error, RepositoryNotFoundError | HFValidationError):
        allowed = "owner/name of a model on the hub; for a private one a token, as HF_TOKEN"
        where = "model.hub_id"
    told = _first_line(error)
    asked = hub_id if revision is None else f"{hub_id} at {revision}"
    return InputError(f"Cannot fetch {asked} from the hub", got=told, allowed=allowed, where=where)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
