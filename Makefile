# Every verb is one line that calls a tool; what takes more is in scripts/ or in the package that it names.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
PY := $(BIN)/python
RUN := .venv/run.stamp
DEV := .venv/dev.stamp
LOCKED := uv.lock pyproject.toml limits/pyproject.toml membrane/pyproject.toml proto/pyproject.toml sdk/pyproject.toml tunnel/pyproject.toml walls/pyproject.toml
COMPOSE = $(if $(shell docker compose version 2>/dev/null),docker compose,FAIRLEAD_SYSTEMPATHS=no-new-privileges docker-compose)
STATE = $(or $(FAIRLEAD_STATE),.fairlead)
CODE := services limits membrane native/fairlead_native sdk tunnel walls tests scripts loadtests benchmarks
PYTEST := $(BIN)/pytest -q
# Tests wait more than they compute: four processes are not too many for two cores.
SPREAD := -n 4 --dist loadfile --no-loadscope-reorder

REPO ?=
CMD ?=
ROOM ?= *
NAME ?= launch
TESTS ?=
SEED ?= $(shell date +%s)
BASE ?=
N ?=
USERS ?= 8
TIME ?= 30s
export CMD

.PHONY: help setup demo up down logs doctor check test test-unit test-contract test-e2e test-all shuffled flaky fmt fmt-check lint \
	types layers proto proto-check settings native native-check fuzz load soak bench bench-peers bench-report images compose-up compose-down compose-test clean

help: ## Show this list
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } /^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Start
setup: $(DEV) ## Install everything that is needed, also for tests, into .venv
demo: $(RUN) ## Start a stack, launch REPO= with CMD= twice, stop; needs nothing before it
	@$(PY) -m devstack demo $(if $(REPO),--repo "$(REPO)") $(if $(CMD),--cmd "$$CMD")
up: $(RUN) ## Start a stack; it stays until `make down`
	@$(PY) -m devstack up --detach
down: $(RUN) ## Stop the stack of this checkout
	@$(PY) -m devstack down
logs: ## Follow the rooms' logs; ROOM=signalling narrows it
	@tail -n 20 -F $(STATE)/logs/$(ROOM).log
doctor: $(RUN) ## Say what this machine can do, and what to do about the rest
	@$(PY) -m devstack doctor

##@ Check
check: fmt-check lint types layers proto-check test-unit ## Everything that takes seconds
test: test-unit test-contract test-e2e ## All tests that need no container engine
test-unit: $(DEV) ## Tests without sockets
	$(PYTEST) $(SPREAD) tests/unit
test-contract: $(DEV) ## One suite per port and per wire
	$(PYTEST) $(SPREAD) tests/contract
test-e2e: $(DEV) ## A whole stack, from outside
	$(PYTEST) $(SPREAD) tests/e2e
test-all: $(DEV) ## The same with all combinations, of which `test` runs pairs
	FAIRLEAD_TEST_ALL=1 $(MAKE) test
shuffled: $(DEV) ## Unit and contract tests in the order of SEED= (the time by default), to find tests that others disturb
	$(PYTEST) $(SPREAD) --shuffle $(SEED) tests/unit tests/contract
flaky: $(DEV) ## Run new and changed tests (or TESTS=) 30 times at four speeds; fails if one fails
	$(PY) -m scripts.flaky $(if $(BASE),--base "$(BASE)") $(if $(N),--times $(N)) $(TESTS)

##@ Code
fmt: $(DEV) ## Format, and fix what can be fixed
	$(BIN)/ruff check --fix -q $(CODE); $(BIN)/ruff format $(CODE)
fmt-check: $(DEV)
	$(BIN)/ruff format --check $(CODE)
lint: $(DEV) ## Lint
	$(BIN)/ruff check $(CODE)
types: $(DEV) ## Check types
	$(BIN)/mypy
layers: $(DEV) ## Check who imports whom
	$(BIN)/lint-imports
proto: $(DEV) ## Generate proto/gen from the .proto files
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PY) -m scripts.generate_proto
settings: $(DEV) ## Write what is derived from the code: the tables of settings and limits, the worker's seccomp profile
	$(PY) -m scripts.settings_table
	$(PY) -m scripts.limits_table
	$(PY) -m scripts.container_calls
native: $(DEV) ## Build the native core with cargo and install it into .venv
	PYTHON=$(CURDIR)/$(PY) sh scripts/native.sh build
native-check: $(DEV) ## Format, lint and test the native core
	PYTHON=$(CURDIR)/$(PY) sh scripts/native.sh check
proto-check: $(DEV) ## Lint the .proto files; generated is committed; nothing breaks
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PY) -m scripts.check_proto

##@ Load
fuzz: $(DEV) ## Feed what reads a tunnel with any bytes, each for TIME=; fails on a fault
	$(PY) -m tests.fuzz $(TIME)
load: $(DEV) ## Drive a stack with USERS= for TIME=; fails past a budget
	$(PY) -m loadtests.run --users $(USERS) --time $(TIME)
soak: $(DEV) ## Use a worker for TIME= while all is killed at random; fails when anything is left
	$(PY) -m loadtests.soak --time $(TIME)
bench: $(DEV) ## Measure NAME= side by side; QUICK=1 for function only
	$(PY) -m benchmarks.$(NAME)
bench-peers: $(DEV) ## Install what benchmarks compare with (Debian, Ubuntu; needs root, go and npm)
	apt-get install -y --no-install-recommends bubblewrap socat
	sh scripts/bench_peers.sh
bench-report: $(DEV) ## Draw the recorded figures
	$(PY) -m benchmarks.report

##@ Ship
images: ## Build the container images
	$(COMPOSE) build
compose-up: ## Start the stack in containers
	$(COMPOSE) up -d --build
compose-down: ## Stop it and remove its volumes
	$(COMPOSE) down -v
compose-test: $(DEV) ## Build, start, use, hurt and stop the stack in containers
	$(PYTEST) tests/compose
clean: ## Remove what was made here; a running stack is stopped first
	@sh scripts/clean.sh

$(RUN): $(LOCKED) scripts/setup.sh
	@sh scripts/setup.sh run
$(DEV): $(LOCKED) scripts/setup.sh
	@sh scripts/setup.sh dev
