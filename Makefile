# Everything runs from .venv, which the first target that needs it creates. stdout belongs to the command
# that a target runs: set-up talks on stderr, so that `make demo ARGS=--json` prints one line of JSON.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

STARTED_AT := $(shell date +%s)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Extra arguments for installing torch, for example an index with CPU builds (see README).
TORCH_ARGS ?=
ARGS ?=
TESTS ?= tests
# A file's tests stay on one worker, so that what they share is made once; in the order of folders, so that the
# long ones do not come last. One worker more than two cores: tests of processes wait half of the time.
WORKERS ?= 3

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test check libraries fmt proto bench faults results clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(READY): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (some minutes the first time)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) >&2
	@$(BIN)/python -m pip install -qq $(TORCH_ARGS) torch==2.13.0 >&2
	@$(BIN)/python -m pip install -qq -c constraints.txt -e '.[dev]' >&2
	@touch $@

demo: $(READY)  ## serve the demo model, chat, switch both phases through all twelve directions
	@env -u OMP_NUM_THREADS $(BIN)/splash demo --started-at $(STARTED_AT) $(ARGS)

test: libraries check  ## all checks and all tests that need no GPU (TESTS=path to choose)
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS)

libraries:
	@for name in libibverbs.so.1 libnuma.so.1 libcurl.so.4; do \
	  $(PYTHON) -c "import ctypes; ctypes.CDLL('$$name')" 2>/dev/null || { \
	    echo "the tests of the Mooncake transport need $$name:" >&2; \
	    echo "  apt-get update && apt-get install -y libibverbs1 libnuma1 libcurl4" >&2; exit 1; }; \
	done

check: $(READY)  ## style, types, import direction, drift of the generated stubs
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --pythonpath $(BIN)/python
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q tests/structure/test_proto_drift.py

fmt: $(READY)  ## format and repair what can be repaired
	@$(BIN)/ruff check --fix --exit-zero .
	@$(BIN)/ruff format .

proto: $(READY)  ## generate splash_core/pb from proto/
	@$(BIN)/python -m grpc_tools.protoc -Isplash_core/pb=proto \
	  --python_out=. --pyi_out=. --grpc_python_out=. proto/*.proto

bench: $(READY)  ## tokens per second against transformers (minutes; needs a quiet machine)
	@env -u OMP_NUM_THREADS $(BIN)/splash bench serve --out docs/results $(ARGS)

faults: $(READY)  ## the fault matrix of the handoff, 100 repetitions a row (ARGS="--repetitions 20 --budget-s 1800")
	@$(BIN)/python -m tests.faults --out docs/results $(ARGS)

results: $(READY)  ## docs/results/README.md from the JSON documents beside it
	@$(BIN)/python -m services.bench page docs/results

clean:  ## remove the virtual environment and caches of the tools
	@rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache splash.egg-info build
