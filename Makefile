# Every target sets up what it needs, so each one works first on a fresh clone; `make` alone lists them.
#
#   make test ARGS="tests/core -k order"           some tests only
#   make test PYTHON=python3.13 VENV=.venv-3.13    with another Python, beside the first one
#   make e2e K8S_VERSION=1.35.4                    on another Kubernetes; controlplane/ says which there are

PYTHON ?= python3
VENV ?= .venv
ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test simulate mutants controlplane e2e soak browser prometheus lint format types mypy pyright docs examples bench coverage clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## make the virtual environment and install everything into it

# pip older than 25.1 knows no dependency groups. The stamp comes last, so that a set-up cut short is done again.
$(STAMP): pyproject.toml
	@$(PYTHON) -c '' 2>/dev/null || { \
		echo "make: $(PYTHON) does not run; install Python 3.11 or newer, or say which: make PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "make: asyncdispatch needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) -V 2>&1); say which: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "make: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Setting up $(VENV) (once; about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[kubernetes,testing,inspection,otel,cli]' --group dev
	@touch $(STAMP)

demo: $(STAMP) ## place 1,000 Pods through the dispatcher, over HTTP
	@$(BIN)/python -m asyncdispatch demo $(ARGS)

test: $(STAMP) ## run the tests on two processes; ARGS picks some
	@$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

simulate: $(STAMP) ## check ten million simulated calls against the rules; ARGS="--calls 1e6" for fewer
	@$(BIN)/python -m asyncdispatch.simulation $(ARGS)

mutants: $(STAMP) ## plant every small fault in the core, and say which share the tests notice; ARGS="lanes --sample 50" for fewer
	@$(BIN)/python -m tests.mutation $(ARGS)

# K8S_VERSION and KUBEBUILDER_ASSETS are read from the environment, where make puts what it is given.
controlplane: $(STAMP) ## build etcd, kube-apiserver and kube-scheduler for tests, into a cache
	@$(BIN)/python -m asyncdispatch.testing.controlplane.build

e2e: controlplane ## run the tests that need a real control plane; ARGS="-k name" picks some
	@$(BIN)/python -m pytest tests/e2e -n 2 --dist loadfile $(ARGS)

soak: controlplane ## chaos on a real control plane; SOAK_SECONDS=60 SOAK_SEED=1
	@$(BIN)/python -m pytest -q tests/e2e/test_soak.py $(ARGS)

browser: $(STAMP) ## run the tests that need Chromium
	@$(BIN)/python -m pytest tests/browser $(ARGS)

prometheus: $(STAMP) ## run the tests that need Prometheus and promtool
	@$(BIN)/python -m pytest tests/prometheus $(ARGS)

coverage: $(STAMP) ## run the tests and show which lines they miss
	@$(BIN)/python -m coverage run -m pytest $(ARGS)
	@$(BIN)/python -m coverage report

lint: $(STAMP) ## check style and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(STAMP) ## repair style and format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

types: mypy pyright ## check types with mypy and pyright, also as a project that uses this one

mypy: $(STAMP)
	@$(BIN)/mypy
	@cd tests/typing && $(abspath $(BIN))/mypy --cache-dir ../../.mypy_cache/typing .

# pyright brings its own node, so that neither the machine's nor a download decides what it finds.
pyright: export PYRIGHT_PYTHON_GLOBAL_NODE = off
pyright: export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
pyright: $(STAMP)
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@cd tests/typing && $(abspath $(BIN))/pyright --pythonpath $(abspath $(BIN))/python

docs: $(STAMP) ## build the documentation; a warning is an error
	@$(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

examples: $(STAMP) ## run each program in examples/
	@set -e; for program in examples/*.py; do \
		[ -e "$$program" ] || { echo "no examples yet"; break; }; \
		echo "== $$program"; $(BIN)/python "$$program"; \
	done

bench: $(STAMP) ## measure ratios against peers
	@$(BIN)/python -m benchmarks $(ARGS)

clean: ## remove what the other targets made
	@rm -rf .venv .venv-* build dist docs/_build htmlcov .coverage .coverage.* \
		.hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
