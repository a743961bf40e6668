# Two commands: `make demo` runs the main job on the embedded data, `make test` runs the tests.
# Both set up everything they need in .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
OUT ?= demo
WORKERS ?= 2

.PHONY: demo test test-all test-fast lint types check clean

demo: $(READY)  ## compare methods on the digits, write the report
	$(BIN)/unalike compare --config examples/demo.toml --out $(OUT)

test: $(READY)  ## the tests but for whole federations over sockets, which take ten minutes more
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not (network and slow)"

test-all: $(READY)  ## every test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-fast: $(READY)  ## without the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: lint types test

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) $(OUT) build dist .pytest_cache .mypy_cache .ruff_cache
