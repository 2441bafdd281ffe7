# Two commands do everything: `make demo` and `make test`. Both set up .venv first when it is missing or out of date.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# One thread per test process: two processes with two threads each are slower than one.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
WORKERS  ?= 2

.PHONY: demo test test-slow lint format types doctest bench bench-augment clean

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(READY)  ## train on scikit-learn's digits with cross-entropy and with ISDA, and compare
	$(BIN)/python examples/digits.py

test: $(READY)  ## every test
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

test-slow: $(READY)  ## the tests that take minutes as well
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

doctest: $(READY)
	$(TEST_ENV) $(BIN)/python -m pytest --doctest-modules --doctest-glob='*.md' src README.md docs

bench: $(READY)  ## writes benchmarks/results/core.{csv,md}; wants an idle machine
	$(BIN)/python benchmarks/core.py

bench-augment: $(READY)  ## writes benchmarks/results/augment.{csv,md}
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/augment.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
