# Every target installs what it needs first. `make help` lists them.
SHELL := /bin/sh
PY := .venv/bin/python
CODE := tff_agg stackoverflow cifar pcvr pds examples benchmarks tests
# Two processes fit two cores; tests of one file stay together.
LAYERS := PYTHONPATH=. .venv/bin/lint-imports --no-logo --no-cache
PYTEST := $(PY) -m pytest -n $(or $(TEST_PROCESSES),2) --dist loadfile --no-loadscope-reorder

.PHONY: help install install-gpu install-gpu-jax check-gpu lock lint format test test-fast notebooks demo demo-full bench bench-full clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 18

install: ## make .venv from the lock
	@sh tools/install.sh requirements.lock

install-gpu: ## make .venv with TensorFlow's CUDA wheels
	@sh tools/install.sh requirements.gpu.lock

install-gpu-jax: ## make .venv with JAX's CUDA wheels, for the tasks on examples
	@sh tools/install.sh requirements.gpu-jax.lock

check-gpu: ## on a machine with a GPU, after one of these: does it do what the CPU does?
	@$(PY) -m benchmarks.check_gpu

lock: install ## compile requirements.in and those for GPUs anew
	@sh tools/lock.sh

lint: install ## ruff, mypy, and the layers
	@$(PY) -m ruff check --quiet $(CODE)
	@$(PY) -m ruff format --check --quiet $(CODE)
	@$(PY) -m mypy $(CODE)
	@$(LAYERS) >/dev/null || $(LAYERS)

format: install ## sort and format
	@$(PY) -m ruff check --fix --quiet $(CODE) || true
	@$(PY) -m ruff format --quiet $(CODE)

test: lint ## lint, then all tests
	@$(PYTEST) tests

notebooks: install ## run the notebooks
	@$(PYTEST) --nbmake --nbmake-timeout=300 notebooks

demo: install ## train on embedded data, compare, print a table, draw a picture
	@$(PY) -m stackoverflow study demo --settings="periodic shift"

demo-full: install ## the same, and without the shift as well
	@$(PY) -m stackoverflow study demo

bench: install ## the ratios that the documentation quotes, at short sizes: about 10 minutes
	@sh tools/bench.sh short

bench-full: install ## the measurements behind the documentation: half an hour and more
	@sh tools/bench.sh full

test-fast: install ## the tests that take seconds
	@$(PYTEST) -m "not slow"

clean: ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
