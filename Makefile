# Two commands do everything on a machine that has Python, make and git:
#   make demo   set up, then run the demo grid to its report
#   make test   set up, then lint, type-check and test
#   make quick  the tests that need no Ray, no server and no whole command
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

.PHONY: demo test quick coverage setup lint types docs fuzz audit bench faults soak clean

demo: $(VENV)/.installed
	$(BIN)/python -m orchestrator grid demo

test: $(VENV)/.installed-test lint types
	$(PYTEST)

quick: $(VENV)/.installed-test
	$(PYTEST) -m "not (ray or server or e2e or fuzz)"

coverage: $(VENV)/.installed-test
	$(PYTEST) --cov=bolt --cov=orchestrator --cov-report=term

setup: $(VENV)/.installed-test

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.installed-test
	$(BIN)/mypy

docs: $(VENV)/.installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo 'open build/site/index.html'

fuzz: $(VENV)/.installed-test
	BOLT_FUZZ=1 $(BIN)/python -m pytest tests/fuzz

audit: $(VENV)/.installed-audit
	$(BIN)/python -m tests.audit

bench: $(VENV)/.installed
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

faults: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests/faults

soak: $(VENV)/.installed-test
	$(BIN)/python tests/faults/soak.py --faults $(or $(FAULTS),200) --seed $(or $(SEED),0)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-audit: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[audit,cluster,test]'
	touch $@ $(VENV)/.installed-test $(VENV)/.installed

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
