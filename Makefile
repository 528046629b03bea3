# Each target sets up .venv by itself when it is missing or older than pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1

.PHONY: quickstart test check learn faults bench format clean

quickstart: $(READY)  ## train a tiny model on one-digit sums, about three minutes on two cores
	$(BIN)/asyncrl train config=quickstart $(ARGS)

test: $(READY)  ## the whole test suite
	$(BIN)/python -m pytest -m "not learn and not faults and not gpu" $(ARGS)

check: $(READY)  ## formatting, lint, types, floors
	$(BIN)/ruff format --check asyncrl tests
	$(BIN)/ruff check asyncrl tests
	$(BIN)/mypy
	$(BIN)/lint-imports

learn: $(READY)  ## learning runs and their controls, tens of minutes
	$(BIN)/python -m pytest -m learn $(ARGS)

faults: $(READY)  ## kills at every point and every cut of a batch, many launches
	$(BIN)/python -m pytest -m faults $(ARGS)

bench: $(READY)  ## every benchmark, one JSON object a line
	$(BIN)/asyncrl bench all --json $(ARGS)

format: $(READY)
	$(BIN)/ruff format asyncrl tests
	$(BIN)/ruff check --fix asyncrl tests

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) runs
