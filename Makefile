# Every target sets up its own environment: a machine with Python >= 3.11 and make needs nothing else.

PYTHON ?= python3
EXTRAS ?= dev,cli,plots,gpytorch,fast,onnx,docs
DIST ?= dist

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-thorough test-all peers lint format tables docs bench wheel release clean

help:
	@grep -E '^[a-z-]+:.*  ## ' $(firstword $(MAKEFILE_LIST)) | awk -F ':.*  ## ' '{printf "make %-13s %s\n", $$1, $$2}'

# The environment is updated only when pyproject.toml or constraints.txt has changed.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "shoal needs Python >= 3.11, and '$(PYTHON)' is not one; try: make PYTHON=python3.11" >&2; \
	    exit 1; }
	@echo "Setting up $(VENV); the first time this takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[$(EXTRAS)]'
	@touch $@

demo: $(STAMP)  ## Analyze a deep equilibrium model on handwritten digits
	$(BIN)/shoal analyze --output build/demo

# One thread in each of as many processes as there are cores: small problems gain nothing from threads.
# Each takes the next tests in order, so that those of a file mostly share what is set up for them.
# Bytecode is kept, whatever the environment says: processes that tests start and `test-thorough` load it.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist worksteal

test: $(STAMP)  ## Run the tests
	$(PYTEST)

test-thorough: $(STAMP)  ## Run the tests that take some time
	$(PYTEST) -m thorough

# Both, collected once.
test-all: $(STAMP)
	$(PYTEST) -m '' --durations 10

# Runs in an environment apart, with packages that shoal's tests do not need.
PEERS := build/peers
$(PEERS)/.installed: pyproject.toml constraints.txt peers-constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt \
	    --constraint peers-constraints.txt --editable '.[dev,cli,gpytorch,onnx]' \
	    botorch frozendict jax optimistix pandas
	# without what only its experimental part needs: TensorFlow
	$(PEERS)/bin/python -m pip install --quiet --constraint peers-constraints.txt --no-deps neural-tangents
	@touch $@

peers: $(PEERS)/.installed  ## Run the tests of other packages on shoal, and write docs/peers.md
	OMP_NUM_THREADS=1 $(PEERS)/bin/python tests/peers --numprocesses auto

lint: $(STAMP)  ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)  ## Rewrite the files in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Writes the tables of the documentation anew from docs/results.
tables: $(STAMP)
	PYTHONPATH=docs $(BIN)/python -m result_tables

# Sphinx reads build/pages, which site/conf.py fills.
SITE := -c site -d build/doctrees build/pages build/site

docs: $(STAMP)  ## Build the documentation site into build/site; a broken link is an error
	@mkdir -p build/pages
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build --quiet --fail-on-warning --jobs auto $(SITE)

# A script *_peer.py times another library; an interpreter that has it runs it.
bench: $(STAMP)  ## Run the benchmarks
	@for script in $(sort $(filter-out %_peer.py,$(wildcard benchmarks/*.py))); do \
	    echo "$$script"; $(BIN)/python "$$script" || exit; done

# Builds the source archive and the wheel into DIST.
wheel: $(STAMP)
	$(BIN)/python -m build --outdir '$(DIST)'

# PYTHONS names interpreters, TORCH versions of torch (default: the newest one).
PYTHONS ?= $(PYTHON)
release: $(STAMP)  ## Build the release twice, compare, and install it with each of PYTHONS
	$(BIN)/python .ci/release.py --dist '$(DIST)' --python $(PYTHONS) --torch $(TORCH)

clean:  ## Remove the environment, caches and build results
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
