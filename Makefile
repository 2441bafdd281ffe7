# Two commands do everything: `make demo` and `make test`. Both set up .venv first when it is missing or out of date.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Two states of one environment: the lab, which the demo needs, and everything, which includes it.
READY  := $(VENV)/.ready
LAB    := $(VENV)/.ready-lab
OLDEST := .venv-oldest
# One thread per test process: two processes with two threads each are slower than one. A file's tests stay together
# (--dist loadfile), so that what they share, such as runs in several processes, is made once.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
WORKERS  ?= 2
DATA     ?= data
METHOD_TESTS := $(wildcard tests/test_*.py) tests/classifier
NUMERICAL_TESTS := $(METHOD_TESTS) tests/lab/networks tests/lab/data tests/lab/methods tests/integrations

.PHONY: demo test test-slow test-oldest test-anywhere browser lint format types doctest bench bench-augment bench-training bench-segmentation bench-accelerator bench-tilt bench-generators bench-attach rivals sensitivity camvid docs docs-check bench-estimator problems clean analyse semi-composition few-images sentences finetune

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(LAB)

$(LAB): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lab]'
	touch $@

# lambda_0 was fixed beforehand on held-out images and other seeds: docs/evidence/few-images.md has the figures.
demo: $(LAB)  ## 200 labelled digits: cross-entropy, ISDA and ISDA tilted, 10 paired seeds, table and report
	OMP_NUM_THREADS=1 $(BIN)/isda compare --data digits --labels 200 --batch-size 32 --width 0.5 --epochs 40 \
	  --methods cross-entropy isda:lambda_0=1 isda-tilted:lambda_0=10 --seeds 10 --jobs 2 --out runs/demo

test: $(READY) browser  ## every test
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not slow"

test-slow: $(READY) browser  ## the tests that take minutes as well
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

$(OLDEST)/.ready: pyproject.toml constraints-oldest.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --constraint constraints-oldest.txt --editable '.[lab]' \
	  hypothesis pytest pytest-xdist transformers
	touch $@

test-oldest: $(OLDEST)/.ready  ## the core's tests with the oldest versions that pyproject.toml promises; Python 3.11
	$(TEST_ENV) $(OLDEST)/bin/python -m pytest -n $(WORKERS) -m "not slow" $(METHOD_TESTS)

test-anywhere: $(READY)  ## the numerical tests on each vector unit of this processor, with 1 and 2 threads, in random order
	TOKENIZERS_PARALLELISM=false .ci/anywhere $(NUMERICAL_TESTS)

browser:  # the tests of the HTML report open it in Chromium, which only root can install
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { test "$$(id -u)" = 0 && \
	  command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "Chromium is not installed: the browser tests are skipped"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

doctest: $(READY)
	$(TEST_ENV) $(BIN)/python -m pytest --doctest-modules src

docs: $(READY)  ## the documentation, in build/site: open build/site/index.html
	$(TEST_ENV) $(BIN)/sphinx-build -W --keep-going -q -b html -d build/doctrees docs build/site

docs-check: docs  ## also tests that its links lead somewhere, and runs the code blocks of every page
	$(TEST_ENV) $(BIN)/python -m pytest website

bench: $(READY)  ## writes benchmarks/results/core.{csv,md}; wants an idle machine
	$(BIN)/python benchmarks/core.py

bench-augment: $(READY)  ## writes benchmarks/results/augment.{csv,md}
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/augment.py

bench-training: $(READY)  ## writes benchmarks/results/training.{csv,md}; DATA holds cifar10 and cifar100
	$(BIN)/python benchmarks/training.py --data-root $(DATA)

bench-segmentation: $(READY)  ## writes benchmarks/results/segmentation.md; takes 8 GB and some minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/segmentation.py

bench-accelerator: $(READY)  ## writes benchmarks/results/accelerator.md: kernels and waits, counted on the pretend device
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/accelerator.py

bench-tilt: $(READY)  ## writes benchmarks/results/tilt.md: how near the tilted search comes to the minimum, and its cost
	$(BIN)/python benchmarks/tilt.py

bench-generators: $(READY)  ## writes benchmarks/results/generators.md: networks of ten classes side by side or in a loop
	$(BIN)/python benchmarks/generators.py

bench-attach: $(READY)  ## writes benchmarks/results/attach.{csv,md}: which models attach works with; 10 minutes
	$(TEST_ENV) $(BIN)/python benchmarks/attach.py --again

bench-estimator: $(READY)  ## writes benchmarks/results/estimator.md: fit time of ISDAClassifier beside LogisticRegression
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/estimator.py

semi-composition: $(READY)  ## writes benchmarks/results/semi_composition.{csv,md} and semi_choices.csv; hours; DATA holds cifar10 and svhn_small.npz
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/semi_composition.py --data-root $(DATA)

few-images: $(READY)  ## writes benchmarks/results/few_images.{csv,md} (benchmarks/plan.md); hours; DATA holds cifar10 and cifar100
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/few_images.py --data-root $(DATA)

sentences: $(READY)  ## writes benchmarks/results/sentences.{csv,md}: ISDAClassifier on embeddings of texts; DATA/packages holds wheels
	$(TEST_ENV) $(BIN)/python benchmarks/sentences.py --packages $(DATA)/packages --cache $(DATA)/problems

finetune: $(READY)  ## writes benchmarks/results/finetune.{csv,md}: EfficientNet-Lite0; an hour; DATA holds cifar100, DATA/packages a wheel
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/finetune.py --packages $(DATA)/packages --data-root $(DATA)

rivals: $(READY)  ## writes benchmarks/results/rivals.{csv,md}; two hours; DATA holds cifar10
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/rivals.py --data-root $(DATA)

analyse: $(READY)  ## writes the tables of benchmarks/results/*.md, again, from the .csv files: no run is repeated
	$(BIN)/python benchmarks/analyse.py

sensitivity: $(READY)  ## writes benchmarks/results/sensitivity.{csv,md}: strengths and parts; two hours; DATA holds cifar10
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/sensitivity.py --data-root $(DATA)

camvid: $(READY)  ## writes benchmarks/results/camvid.{csv,md}: segmentation; an hour; DATA holds camvid
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/camvid.py --data-root $(DATA)

problems: $(READY)  ## writes benchmarks/results/problems.{csv,md}; an hour
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/problem_sets.py --packages $(DATA)/packages --data-root $(DATA) --cache $(DATA)/problems
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/problems.py --cache $(DATA)/problems


clean:
	rm -rf $(VENV) $(OLDEST) build .pytest_cache .mypy_cache .ruff_cache .hypothesis
