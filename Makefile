# Everything runs in a private environment that is made on first use from pyproject.toml.
#
#   make demo ARGS=--fast          options for `mcpmix demo`
#   make test ARGS="-k rla"        options for pytest
#   make demo PYTHON=python3.12    another interpreter (3.11 or newer)
#   make demo VENV=elsewhere       another place for the environment
#   make demo TORCH=cpu            the build of torch without GPU libraries: an eighth of the download

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
TORCH  ?=
# Builds of torch by name, from its makers: cpu, cu130 and others; read when the environment is made.
TORCH_INDEX ?= https://download.pytorch.org/whl

BIN     := $(VENV)/bin
RUNTIME := $(VENV)/.installed
DEV     := $(VENV)/.installed-dev
DOCS    := $(VENV)/.installed-docs
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install
SCRIPTS := $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test nnunet check docs fuzz bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(RUNTIME) ## install what is needed to run, then all stages on the embedded default, offline
	$(BIN)/mcpmix demo $(ARGS)

test: $(DEV) ## all tests
	$(BIN)/pytest -q $(ARGS)

nnunet: $(DEV) ## the tests of the trainers for nnU-Net, which brings an older timm into the environment
	$(INSTALL) -e '.[nnunet]'
	$(BIN)/pytest -q $(ARGS) tests/unit/segmenter/test_nnunet.py

check: $(DEV) ## lint, formatting and types; all three run even if one fails
	@status=0; \
	$(BIN)/ruff check . || status=1; \
	$(BIN)/ruff format --check . || status=1; \
	$(BIN)/mypy || status=1; \
	exit $$status

docs: $(DOCS) ## the documentation as a site that opens from disk: build/docs/site/index.html
	$(BIN)/python -m tools.site $(ARGS)

fuzz: $(DEV) ## 20,000 damaged files to everything that reads files; ARGS="--count 2000 --seed 1"
	$(BIN)/python -m tools.fuzz $(ARGS)

bench: $(RUNTIME) ## every script in benchmarks/
	@test -n "$(SCRIPTS)" || { echo "benchmarks/ holds no scripts yet." >&2; exit 1; }
	@for script in $(SCRIPTS); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean: ## remove the environment and all caches; results in runs/ stay
	@if [ -f "$(VENV)/pyvenv.cfg" ]; then rm -rf -- "$(VENV)"; fi
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps are newer than pyproject.toml while the environment is up to date. All installations write to
# one environment, so the others wait for the first, also under `make -j`.
$(RUNTIME): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "mcpmix needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1)"; \
	  echo "Name another interpreter, for example: make $(or $(firstword $(MAKECMDGOALS)),demo) PYTHON=python3.12"; \
	  exit 1; } >&2
	@echo "Setting up $(VENV), once. The default build of torch is several GB and takes a few minutes."
	$(PYTHON) -m venv "$(VENV)"
	$(if $(TORCH),$(INSTALL) torch torchvision --index-url $(TORCH_INDEX)/$(TORCH))
	$(INSTALL) -e .
	@touch $@

$(DEV): $(RUNTIME)
	$(INSTALL) -e '.[dev]'
	@touch $@

$(DOCS): $(RUNTIME)
	$(INSTALL) -e '.[docs]'
	@touch $@
