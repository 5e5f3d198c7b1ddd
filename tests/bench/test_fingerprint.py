"""A fingerprint follows contents, not places or times."""

import os

import pytest

from bench import fingerprint as module
from bench.fingerprint import fingerprint


@pytest.fixture(autouse=True)
def kept(monkeypatch, tmp_path):
    path = tmp_path / "cache" / "file-hashes.json"
    monkeypatch.setattr(module, "_KEPT", path)
    return path


def folder(tmp_path, name, weights=b"weights", config="{}"):
    made = tmp_path / name
    made.mkdir()
    (made / "model.safetensors").write_bytes(weights)
    (made / "config.json").write_text(config)
    return made


def of(path):
    return fingerprint(path, [path / "model.safetensors"])


def test_equal_files_in_two_places_have_one_fingerprint(tmp_path):
    assert of(folder(tmp_path, "a")) == of(folder(tmp_path, "b"))


def test_every_file_that_bears_on_the_numbers_changes_it(tmp_path):
    first = of(folder(tmp_path, "a"))
    assert of(folder(tmp_path, "b", weights=b"others")) != first
    assert of(folder(tmp_path, "c", config='{"vocab_size": 3}')) != first
    with_tokenizer = folder(tmp_path, "d")
    (with_tokenizer / "tokenizer.json").write_text("{}")
    assert of(with_tokenizer) != first


def test_a_file_is_hashed_once(tmp_path, monkeypatch):
    path = folder(tmp_path, "a")
    first = of(path)
    monkeypatch.setattr(module.hashlib, "sha256", _counting := Counting(module.hashlib.sha256))
    assert of(path) == first
    # The one hash is that of the names and hashes.
    assert _counting.made == 1


class Counting:
    def __init__(self, sha256):
        self.sha256, self.made = sha256, 0

    def __call__(self, *given):
        self.made += 1
        return self.sha256(*given)


def test_a_changed_file_is_hashed_again_even_at_the_same_size(tmp_path):
    path = folder(tmp_path, "a")
    first = of(path)
    (path / "model.safetensors").write_bytes(b"WEIGHTS")
    os.utime(path / "model.safetensors", ns=(1, 1))
    assert of(path) != first


def test_a_damaged_cache_costs_time_only(tmp_path, kept):
    path = folder(tmp_path, "a")
    first = of(path)
    kept.write_text("{")
    assert of(path) == first
