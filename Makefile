# Needs Python >= 3.11 (with venv) and GNU make >= 3.81, and nothing else.

VENV := .venv
BIN := $(VENV)/bin
# The first interpreter that is new enough and can make a virtual environment.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
	2>/dev/null && echo $$python && break; done)

.PHONY: help demo test lint gallery clean

help:
	@echo 'make demo      four batching policies on one workload: a table, a page, pictures'
	@echo 'make test      everything that CI checks'
	@echo 'make lint      only ruff, mypy and the import rules'
	@echo 'make gallery   draw the pictures in docs/images again'
	@echo 'make clean     remove what was built or installed here'

demo: $(VENV)/.run
	$(BIN)/batchlab demo -o demo

gallery: $(VENV)/.run
	$(BIN)/python tests/gallery.py

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	rm -rf build/wheel
	$(BIN)/hatchling build -t wheel -d build/wheel
	$(BIN)/check-wheel-contents build/wheel
	$(BIN)/pytest -n auto

clean:
	rm -rf $(VENV) build out demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache

# pip comes last when an environment is made: where it is missing, the making was cut short.
$(BIN)/pip:
	@test -n "$(PYTHON)" || { \
		echo 'make: no Python >= 3.11 with venv found' \
			'(Debian: apt install python3-venv; macOS: brew install python)' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/pip
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $(VENV)/.run $@
