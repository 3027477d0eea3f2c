# make demo    simulate, train and evaluate a small model on a CPU; results in runs/demo/
# make compare  train every member of the dynamics family, compare them; results in runs/compare/
# make test    the whole test suite
# make lint    style, formatting and types
# make longtest  the test suite with many more repetitions of its randomised tests
# make soak    the tests of reliability that take minutes each
# make bench   the quick benchmarks; one table in runs/bench/
# make env     only the environment, .venv; PYTHON=python3.12 chooses the interpreter

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.hdvpd
# A file's tests share what is compiled, so they stay in one process. One process more than there
# are cores, for some wait for commands that a test has started. WORKERS=0 uses this one alone.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST = $(BIN)/python -m pytest --extras $(TEST_EXTRAS),browser \
  -p xdist -n $(WORKERS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder --durations=50 --durations-min=1
TEST_EXTRAS := sim,import,dev,open3d,keops,tensorboard,view,rerun,studies,vision,gym

.PHONY: demo compare test longtest soak lint bench env clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n 's/^# make/make/p' Makefile

demo:
	@started=$$(date +%s); \
	$(MAKE) --no-print-directory system-simulation $(STAMP)-sim && \
	$(BIN)/hdvpd demo --started $$started $(DEMO_FLAGS)

compare: system-simulation $(STAMP)-sim
	$(BIN)/hdvpd data simulate --out data/compare --episodes 100 --steps 20 --size 96x128
	$(BIN)/hdvpd compare $(COMPARE_FLAGS)

test: system-simulation system-open3d system-browser $(STAMP)-test
	$(PYTEST) $(PYTEST_FLAGS)

longtest: system-simulation system-open3d system-browser $(STAMP)-test
	$(PYTEST) --long $(PYTEST_FLAGS)

soak: WORKERS = logical
soak: system-simulation $(STAMP)-test
	$(PYTEST) --dist worksteal --soak -m soak $(PYTEST_FLAGS)

lint: $(STAMP)-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(STAMP)-test
	$(BIN)/python benchmarks/run_quick.py $(BENCH_FLAGS)

env: $(STAMP)-sim
	@echo "Ready: source $(BIN)/activate"

clean:
	rm -rf $(VENV) dist build

# The environment. A stamp is newer than the files that decide what is installed.

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "hdvpd needs Python 3.11 or 3.12; choose one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv --without-pip $(VENV)
# Debian's python3 can make environments with a pip in them only after python3-venv is installed.
	@$(BIN)/python -m ensurepip --default-pip >/dev/null 2>&1 || \
	  $(PYTHON) -m pip --quiet --python $(BIN)/python install pip || { rm -rf $(VENV); exit 1; }

$(STAMP)-sim: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[sim]'
	@touch $@

$(STAMP)-test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(TEST_EXTRAS)]'
	@touch $@ $(STAMP)-sim

# System libraries and, for the tests, a browser. Root on a Debian-like system gets them installed,
# everybody else gets told.

.PHONY: system-simulation system-open3d system-browser
system-simulation system-open3d system-browser: system-%:
	@missing="$$($(PYTHON) -m hdvpd.commands.system $*)" || exit 1; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing system libraries: $$missing"; \
	  apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	else \
	  echo "System libraries are missing. Run this once, then make again:" >&2; \
	  echo "  sudo apt-get update && sudo apt-get install -y $$missing" >&2; exit 1; \
	fi
