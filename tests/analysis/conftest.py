"""Complete runs in a store, with records by hand: what single runs are shown and compared from."""

from dataclasses import asdict

import pytest

from bench import columns
from bench.meters.clock import Timing
from bench.promise import Machine
from bench.schema import SCHEMA_VERSION, BatchRecord, Header, Leg, Segment, Start
from bench.store import Attempt
from bench.summary import summarise
from methods.engine.ledger import Sums

SCORE = "slot_error_rate"
AT = "2026-01-01T00:00:00+00:00"
PROVENANCE = {
    "git_revision": "a" * 40,
    "git_dirty": False,
    "packages": {"torch": "2.4.0"},
    "python": "3.11.9",
    "cpu_model": "EPYC",
    "threads": 2,
    "device": "cpu",
    "device_name": None,
    "driver": None,
    "hostname": "node1",
}


def _leg(seconds, errors):
    """Two rows of 3 and 2 decode tokens; ``seconds`` are decode times of passes."""
    statistics = [[float(each), 4.0] for each in errors]
    return Leg(
        ids=[[5, 6, 7, 2], [7, 8, 2]],
        texts=["", ""],
        layers=[[4, 2, 2, 2], [4, 2, 2]],
        statistics={SCORE: statistics},
        scores={SCORE: [errors / slots for errors, slots in statistics]},
        timings=[Timing(0.1, each) for each in seconds],
        rounds=4,
        prompt_executed=Sums(mlp_positions=20),
        decode_executed=Sums(mlp_positions=6),
        decode_required=Sums(mlp_positions=5),
    )


def _batches(seconds, errors, dense_s, segment_of, row_order):
    """Batches of two rows, one for each entry of ``seconds``; empty ones were not timed."""
    for index, passes in enumerate(seconds):
        legs = {"method": _leg(passes, errors)}
        if dense_s is not None:
            legs["baseline"] = _leg([dense_s] * len(passes), (0, 0))
        ids = [f"e{index}.{row}" for row in row_order]
        yield BatchRecord(index, ids, [9, 11], legs, [], segment_of.get(index, 0))


@pytest.fixture
def stored(tmp_path, tiny_shape):
    """``stored(run_id, ...)``: a complete run in the store at ``tmp_path``."""

    def make(run_id, *, results=tmp_path, done=True, margin=0.01, identity=(), **made):
        names = {
            "method": {"name": made.get("method", "calm")},
            "weights": {"method": "sha256:own", "baseline": "sha256:dense"},
            "task": {"name": "demo", "split": "test", "examples": "0123"},
            "decode": {"length": "until_eos", "max_new_tokens": 64, "choose": "greedy"},
            "meter": {"batch_size": 2},
            "engine": {"dtype": "float32", "packed": "auto"},
        } | dict(identity)
        dense_s = made.get("dense_s", 0.5)
        legs = ("method",) if dense_s is None else ("method", "baseline")
        shapes = {leg: tiny_shape("an OPT") for leg in legs}
        seconds = made.get("seconds", [[0.2, 0.3]] * 6 + [[]])
        errors, segment_of = made.get("errors", (1, 0)), made.get("segment_of", {})
        row_order = made.get("row_order", (0, 1))
        batches = list(_batches(seconds, errors, dense_s, segment_of, row_order))
        known = {"run_id": run_id, "status": "running", "attempt": 1, "model": "tiny"}
        known |= {"method": names["method"]["name"], "setting": "", "task": "demo"}
        known |= {"length": names["decode"]["length"], "batch_size": 2}
        attempt = Attempt(results / run_id / "1")
        with attempt.claim():
            fields = {leg: asdict(shape) for leg, shape in shapes.items()}
            attempt.write_start(Start(SCHEMA_VERSION, run_id, 1, names, {}, known, fields, AT))
            for changed in made.get("provenances", ({},)):
                attempt.append(Segment(PROVENANCE | changed, AT))
            for batch in batches:
                attempt.append(batch)
            if done:
                row = dict.fromkeys(columns.names([SCORE])) | known | {"status": "done"}
                machine = Machine("float32")
                row |= summarise(batches, shapes, [SCORE], machine=machine, margin=margin)
                attempt.write_header(Header(SCHEMA_VERSION, row, len(batches), AT))
        return attempt

    return make
