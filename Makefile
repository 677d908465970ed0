# Two commands do everything on a machine that has Python, make and git:
#   make demo   set up, then run the demo grid to its report
#   make test   set up, then lint, type-check and test
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: demo test setup lint types bench clean

demo: $(VENV)/.installed
	$(BIN)/python -m orchestrator grid demo

test: $(VENV)/.installed-test lint types
	$(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

setup: $(VENV)/.installed-test

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy

bench: $(VENV)/.installed
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
