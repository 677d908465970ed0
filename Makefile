# Two commands do everything on a machine that has Python, make and git:
#   make demo   set up, then run the demo grid to its report
#   make test   set up, then lint, type-check and test
#   make quick  the fast tests: without Ray, servers, whole commands and generated input
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check

# $(call install,FILE): the packages of a file of requirements/. uv takes a third of pip's time. It trusts the certificates
# that the system trusts, so it works behind a proxy that has its own. It does not read pip's settings, so where packages
# come from an index that only these name, pip installs them.
UV     := UV_SYSTEM_CERTS=1 $(BIN)/uv pip
install = @echo "installing $(1): one to six minutes, most of it PyTorch"; { $(PIP) -r requirements/uv.txt && \
	$(UV) install --quiet --python $(BIN)/python --require-hashes -r $(1); } || \
	{ echo "uv cannot install $(1); pip installs it"; $(PIP) -r $(1); }

# Container images often set this, and every process would compile the project and PyTorch anew. Nothing is compiled when
# it is installed: that takes 36 s on two cores, and most of it is never imported.
unexport PYTHONDONTWRITEBYTECODE

# One process for each processor, at most four: each has PyTorch in memory, and some start Ray.
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadscope --no-loadscope-reorder

.PHONY: demo test quick coverage setup lock lint types docs fuzz audit bench faults soak clean

demo: $(VENV)/.installed
	$(BIN)/python -m orchestrator grid demo

test: $(VENV)/.installed-test lint types
	$(PYTEST)

quick: $(VENV)/.installed-test
	$(PYTEST) -m "not (ray or server or e2e or fuzz or slow)"

coverage: $(VENV)/.installed-test
	$(PYTEST) --cov=bolt --cov=orchestrator --cov-report=term

# Whoever calls this runs Python without make.
setup: $(VENV)/.installed-test
	$(if $(PYTHONDONTWRITEBYTECODE),@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib bolt orchestrator || true)

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
	for script in $(filter-out $(patsubst %,benchmarks/%.py,common fanout steps),$(wildcard benchmarks/*.py)); do \
		echo "== $$script"; $(BIN)/python $$script || exit 1; done

faults: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests/faults

soak: $(VENV)/.installed-test
	$(BIN)/python tests/faults/soak.py --faults $(or $(FAULTS),200) --seed $(or $(SEED),0)

# Writes requirements/ anew: what pyproject.toml changed, and with UPGRADE=--upgrade the newest of everything.
LOCK := $(UV) compile pyproject.toml --group build --universal --python-version 3.11 --generate-hashes \
	--no-header --quiet
lock: | $(VENV)/bin/python
	$(PIP) -r requirements/uv.txt
	$(LOCK) --extra test $(UPGRADE) --output-file requirements/test.txt
	cp requirements/test.txt requirements/run.txt
	$(LOCK) --extra engine --output-file requirements/run.txt
	echo uv | $(UV) compile - --generate-hashes --no-header --no-annotate --quiet $(UPGRADE) --output-file requirements/uv.txt

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11, 4))' || { \
	echo "error: $(PYTHON) is $$($(PYTHON) --version 2>&1); Python 3.11.4 or newer is needed:" \
	"make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml requirements/run.txt | $(VENV)/bin/python
	$(call install,requirements/run.txt)
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.installed-test: pyproject.toml requirements/test.txt | $(VENV)/bin/python
	$(call install,requirements/test.txt)
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@ $(VENV)/.installed

$(VENV)/.installed-audit: $(VENV)/.installed-test
	$(PIP) -e '.[audit]'
	touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
