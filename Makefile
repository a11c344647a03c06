# One command each: `make demo` runs a real job, `make test` passes the tests. Both set everything up first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
STAMP := $(VENV)/.installed
RUN := $(VENV)/bin

.PHONY: deps dev demo test check bench clean format

# System packages are installed only on request, or for CI, where a missing one would be a skipped test.
deps:
	@.ci/packages install

ifeq ($(CIEL_CI),1)
$(STAMP): deps
endif
$(STAMP): pyproject.toml setup.py ciel/launch/launcher.c
	@.ci/packages report
	@echo "ciel: installing into $(VENV) (Python packages of pyproject.toml, and the launcher)"
	@$(PYTHON) -m venv $(VENV)
	@$(RUN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

dev: $(STAMP)

demo: dev
	@$(RUN)/python examples/search.py

test: dev
	@$(RUN)/pytest

check: dev
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/lint-imports --no-cache
	.ci/analyze-c

bench: dev
	@ONLY="$(ONLY)" $(RUN)/python -m benchmarks

format: dev
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info ciel/launch/ciel-launcher .pytest_cache .mypy_cache .ruff_cache
