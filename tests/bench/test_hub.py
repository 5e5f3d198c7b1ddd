"""The hub: which files are fetched, what is taken without it, and how it refuses. No network."""

import json
from dataclasses import dataclass, field
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from bench import hub
from bench.errors import InputError

COMMIT, OTHER = "a" * 40, "b" * 40
SMALL = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer.model", "merges.txt"]
# Files of published repositories, without the small ones.
OPT_SMALL = ["pytorch_model.bin", "flax_model.msgpack", "tf_model.h5", "README.md", "LICENSE.md"]
OPT_LARGE = [
    "pytorch_model-00001-of-00002.bin",
    "pytorch_model-00002-of-00002.bin",
    "pytorch_model.bin.index.json",
    "flax_model-00001-of-00002.msgpack",
    "flax_model.msgpack.index.json",
]
CODELLAMA = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "pytorch_model-00001-of-00003.bin",
    "pytorch_model-00002-of-00003.bin",
    "pytorch_model-00003-of-00003.bin",
    "pytorch_model.bin.index.json",
]
MISTRAL = [
    "consolidated.safetensors",
    "model-00001-of-00001.safetensors",
    "model.safetensors.index.json",
    "params.json",
]
PYTHIA = ["model.safetensors", "pytorch_model.bin", "onnx/model.json", "original/params.json"]
FETCHED = {
    "one pickled file": (OPT_SMALL, ["pytorch_model.bin"]),
    "pickled shards": (OPT_LARGE, OPT_LARGE[:3]),
    "two sets of shards": (CODELLAMA, CODELLAMA[:3]),
    "the weights again under another name": (MISTRAL, MISTRAL[1:]),
    "two whole files, and folders": (PYTHIA, ["model.safetensors"]),
    "no weights": (["README.md"], []),
}


@pytest.mark.parametrize("case", FETCHED)
def test_one_set_of_weights_and_the_small_files_are_fetched(case):
    names, weights = FETCHED[case]
    assert hub.files_to_fetch([*names, *SMALL]) == sorted([*weights, *SMALL])


@dataclass
class FakeHub:
    """A hub that holds one model; ``fault`` is raised by what ``faulty`` names."""

    cache: object
    names: list = field(default_factory=lambda: [*SMALL, *OPT_SMALL])
    fault: Exception | None = None
    faulty: str = "model_info"
    fetched: list = field(default_factory=list)

    def model_info(self, _api, hub_id, *, revision=None, timeout=None):
        assert timeout is not None
        self._fail("model_info")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in self.names])

    def snapshot_download(self, hub_id, *, revision, allow_patterns):
        self._fail("snapshot_download")
        self.fetched.append((hub_id, revision, allow_patterns))
        return str(self.store(hub_id, allow_patterns, revision or "main"))

    def store(self, hub_id, names, revision="main", commit=COMMIT):
        """Files in the cache, as huggingface_hub lays them out."""
        folder = self.cache / f"models--{hub_id.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / revision).write_text(commit)
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True, exist_ok=True)
        for name in names:
            (snapshot / name).write_text("{}")
        return snapshot

    def _fail(self, place):
        if self.fault is not None and self.faulty == place:
            raise self.fault


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """A hub in memory, and an empty cache of its files."""
    made = FakeHub(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(
        huggingface_hub.HfApi,
        "model_info",
        lambda api, *args, **more: made.model_info(api, *args, **more),
    )
    monkeypatch.setattr(hub, "snapshot_download", made.snapshot_download)
    return made


def _of_the_hub(kind, text="told by the hub\nand more"):
    """An error as the hub's answers give it, in old and new releases of its library."""
    response = SimpleNamespace(
        headers={}, status_code=403, request=None, text="", json=dict, url="", history=[]
    )
    return kind(text, response=response)


def _unreachable():
    return hub._HTTP_ERROR("connection refused")


def test_a_model_is_fetched_into_the_cache_under_its_revision(fake):
    folder = hub.snapshot("facebook/opt-125m", "main")
    assert fake.fetched == [("facebook/opt-125m", "main", hub.files_to_fetch(fake.names))]
    assert (folder / "pytorch_model.bin").exists()
    assert not (folder / "tf_model.h5").exists()
    assert hub.commit_of("facebook/opt-125m", "main") == COMMIT


@pytest.mark.parametrize("faulty", ["model_info", "snapshot_download"])
@pytest.mark.parametrize(
    "fault",
    [
        _unreachable,
        lambda: errors.OfflineModeIsEnabled("offline"),
        lambda: errors.LocalEntryNotFoundError("not here"),
        lambda: TimeoutError("too slow"),
        lambda: _of_the_hub(errors.HfHubHTTPError, "503 down"),
        lambda: _of_the_hub(errors.GatedRepoError),
    ],
    ids=["no connection", "offline mode", "not cached", "slow", "hub down", "token forgotten"],
)
def test_without_a_hub_a_complete_cached_copy_is_taken(fake, fault, faulty, capsys):
    held = fake.store("facebook/opt-125m", ["config.json", "pytorch_model.bin"])
    fake.fault, fake.faulty = fault(), faulty
    assert hub.snapshot("facebook/opt-125m", None) == held
    # A copy that may be old is never taken in silence.
    assert f"cached: {held.name}" in capsys.readouterr().err
    assert fake.fetched == []


@pytest.mark.parametrize(
    "names",
    [[], ["config.json"], ["pytorch_model.bin"], ["config.json", "model.safetensors.index.json"]],
    ids=["nothing", "the config only", "the weights only", "an index without its shards"],
)
def test_an_incomplete_cached_copy_is_not_taken(fake, names):
    fake.store("facebook/opt-125m", names)
    fake.fault = _unreachable()
    with pytest.raises(InputError) as caught:
        hub.snapshot("facebook/opt-125m", None)
    assert caught.value.failed == "Cannot fetch facebook/opt-125m from the hub"
    assert caught.value.got == "connection refused"
    assert "model.checkpoint=FOLDER" in caught.value.allowed
    assert "model.weights=random" in caught.value.allowed
    assert caught.value.__cause__ is fake.fault


def test_a_gated_model_is_refused_with_its_page_and_the_ways_to_give_a_token(fake):
    fake.fault, fake.faulty = _of_the_hub(errors.GatedRepoError), "snapshot_download"
    with pytest.raises(InputError) as caught:
        hub.snapshot("meta-llama/Llama-2-7b-hf", None)
    allowed = caught.value.allowed
    assert "https://huggingface.co/meta-llama/Llama-2-7b-hf" in allowed
    assert "licence" in allowed
    assert "HF_TOKEN" in allowed
    assert "huggingface-cli login" in allowed
    assert caught.value.got.startswith("told by the hub")
    assert "\n" not in caught.value.got


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (lambda: _of_the_hub(errors.RevisionNotFoundError), "model.revision"),
        (lambda: _of_the_hub(errors.RepositoryNotFoundError), "model.hub_id"),
        (lambda: errors.HFValidationError("Repo id must be ..."), "model.hub_id"),
    ],
    ids=["revision", "model", "form of the name"],
)
def test_what_the_hub_does_not_have_is_told_by_its_key(fake, fault, where):
    fake.fault = fault()
    with pytest.raises(InputError) as caught:
        hub.snapshot("facebook/opt-125m", "no-such-branch")
    assert caught.value.where == where
    assert caught.value.failed == "Cannot fetch facebook/opt-125m at no-such-branch from the hub"


def test_a_commit_is_read_from_the_cache_alone(fake):
    fake.fault = AssertionError("the hub was asked")
    assert hub.commit_of("facebook/opt-125m", None) is None
    fake.store("facebook/opt-125m", ["config.json"])
    fake.store("facebook/opt-125m", ["config.json"], "old", OTHER)
    assert hub.commit_of("facebook/opt-125m", None) == COMMIT
    assert hub.commit_of("facebook/opt-125m", "old") == OTHER
    assert hub.commit_of("facebook/opt-125m", OTHER) == OTHER
    assert hub.commit_of("facebook/opt-125m", "new") is None
    assert hub.commit_of("not/a/name", None) is None


def test_a_fault_of_ours_is_not_taken_for_the_hubs(fake):
    fake.fault = AssertionError("a slip")
    with pytest.raises(AssertionError, match="a slip"):
        hub.snapshot("facebook/opt-125m", None)


def test_the_folder_of_both_forms_is_read_by_the_rule_it_was_fetched_by(fake):
    """What another program left in the cache does not change which weights are read."""
    from methods.engine.files import weight_files

    index = json.dumps({"weight_map": {"a": CODELLAMA[0], "b": CODELLAMA[1]}})
    folder = fake.store("codellama/CodeLlama-7b-hf", [*SMALL, *CODELLAMA])
    (folder / "model.safetensors.index.json").write_text(index)
    fetched = set(hub.files_to_fetch([*SMALL, *CODELLAMA]))
    assert {path.name for path in weight_files(folder)} == fetched & set(CODELLAMA[:2])
