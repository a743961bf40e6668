# Two commands: `make demo` runs the main job on the embedded data, `make test` runs the tests.
# Both set up everything they need in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT ?= demo
WORKERS ?= 2

LIGHT := .venv-light

.PHONY: demo test test-all test-fast light lint types check clean

demo: $(READY)  ## compare methods on the digits, write the report
	$(BIN)/unalike compare --config examples/demo.toml --out $(OUT)

test: $(READY)  ## the tests but for whole federations over sockets, which take ten minutes more
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not (network and slow)"

test-all: $(READY)  ## every test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-fast: $(READY)  ## without the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow"

light:  ## the command line of a light installation: no extras, the newest of every library but torch
	rm -rf $(LIGHT)
	$(PYTHON) -m venv $(LIGHT)
	grep '^torch==' constraints.txt > $(LIGHT)/torch.txt
	$(LIGHT)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LIGHT)/torch.txt . pytest pytest-xdist
	$(LIGHT)/bin/python -m pytest -n $(WORKERS) -m "not browser" tests/cli

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy
	$(BIN)/mypy --allow-untyped-defs examples/hospitals.py examples/own_part.py  # what a user writes

check: lint types test

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) $(LIGHT) $(OUT) build dist .pytest_cache .mypy_cache .ruff_cache
