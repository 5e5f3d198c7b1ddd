PYTHON ?= python3
PY := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup run test check readme clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.installed  ## .venv with the exact versions of constraints.txt (PYTHON=python3.11 to choose)

.venv/.installed: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

run: setup  ## SkipDecode on the embedded model, on the CPU (ARGS='key=value ...' for more)
	$(PY) -m bench +method=skipdecode $(ARGS)

test: setup  ## all tests that need no GPU and no cluster (ARGS='--run-slow' for the slow ones)
	$(PY) -m pytest $(ARGS)

check: setup  ## format, lint and types
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy --strict

readme: setup  ## runs the commands that README.md shows
	.ci/readme README.md

clean:  ## caches and build leftovers; keeps .venv and results
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +
