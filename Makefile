# Every target runs on a machine with Python >= 3.11 and make: uv is brought in a private environment where it is missing.
SHELL := /bin/sh
PYTHON ?= python3
BOOTSTRAP := .bootstrap
UV := $(shell command -v uv 2>/dev/null || echo $(BOOTSTRAP)/bin/uv)
RUN := $(UV) run --extra local --extra ors
WHAT ?=

.PHONY: first-run check test bench clean

first-run: $(UV)
	$(RUN) platoon server start
	$(RUN) platoon train examples/first-run/train.yaml
	@echo "results:   runs/first-run/errand (docs/run-directory.md names each file)"
	@echo "by task:   $(RUN) platoon tasks show runs/first-run/errand"
	@echo "in the UI: $(RUN) platoon server status"

check: $(UV)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(RUN) pytest -q tests/test_structure.py

test: $(UV)
	$(RUN) pytest -n 2 --dist loadfile

bench: $(UV)
	for b in benchmarks/*.py; do echo "== $$b"; $(RUN) python $$b; done

$(BOOTSTRAP)/bin/uv:
	$(PYTHON) -c 'import sys; sys.exit("platoon needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Set PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(BOOTSTRAP)
	$(BOOTSTRAP)/bin/pip install --quiet uv

# a uv found on PATH is not ours to make
$(shell command -v uv 2>/dev/null):

clean:
	rm -rf $(BOOTSTRAP) .venv dist build
