PYTHON ?= python3
PY := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup run test slurm check readme benchmark gpu-check tiny clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.installed  ## .venv with the exact versions of constraints.txt (PYTHON=python3.11 to choose)

.venv/.installed: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

run: setup  ## SkipDecode on the embedded model, on the CPU (ARGS='key=value ...' for more)
	$(PY) -m bench +method=skipdecode $(ARGS)

test: setup  ## all tests that need no GPU and no cluster (ARGS='--run-slow' for the slow ones)
	OMP_NUM_THREADS=1 $(PY) -m pytest -n auto --dist loadfile $(ARGS)

slurm: setup  ## the tests on a one-node SLURM cluster, which root can install (ARGS=--run-slurm-long)
	@if slurm/lab/install.sh; then $(PY) -m pytest tests/slurm/lab --run-slurm $(ARGS); \
	else echo "SLURM is not to be had here: its tests are left out"; fi

check: setup  ## format, lint and types
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy --strict

readme: setup  ## runs the commands that README.md shows
	.ci/readme README.md

benchmark: setup  ## is the engine fast? results/benchmarks.csv; fails if not (under 25 minutes on 2 cores)
	PYTHONPATH=. $(PY) tests/benchmarks/all_benchmarks.py $(ARGS)

# Without setup: a machine with a GPU may have torch and transformers alone.
gpu-check:  ## the suite on this GPU, in 8 minutes; writes results/published/gpu_check.csv
	PYTHONPATH=. $(if $(wildcard $(PY)),$(PY),$(PYTHON)) tests/benchmarks/gpu_check.py $(ARGS)

# What made bench/embedded/tiny: seed 0, some 15 minutes on 2 cores, then 5 for each variant.
TINY := model=scratch task=demo model.shape.vocab_size=768 model.shape.max_positions=2048 \
	train.batch_size=32 train.save_dtype=bfloat16
TINY_FROM_DENSE := $(TINY) train.steps=1000 train.lr=1e-3 \
	model.checkpoint=bench/embedded/tiny/dense rerun=true

tiny: setup  ## trains the embedded model again (an hour; see CHANGELOG before replacing it)
	$(PY) -m bench.train +method=dense $(TINY) train.steps=2500 train.lr=2e-3 \
		train.warmup_steps=200 train.output=bench/embedded/tiny/dense rerun=true
	$(PY) -m bench.train +method=skipdecode $(TINY_FROM_DENSE) \
		train.output=bench/embedded/tiny/skipdecode
	$(PY) -m bench.train +method=calm $(TINY_FROM_DENSE) train.output=bench/embedded/tiny/calm
	$(PY) -m bench.train +method=calm method.stage=classifier task=demo train.batch_size=32 \
		train.steps=200 model.checkpoint=bench/embedded/tiny/calm rerun=true
	$(PY) -m bench.train +method=layerskip $(TINY_FROM_DENSE) method.early_exit_scale=1.0 \
		method.rotation=4 train.output=bench/embedded/tiny/layerskip

clean:  ## caches and build leftovers; keeps .venv and results
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +
