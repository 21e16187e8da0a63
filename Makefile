# `make demo` and `make test` are all a fresh machine needs: Python >= 3.11 and make.
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2

.PHONY: install demo test test-all lint docs wheel clean

install: .venv/.installed

# Modules are compiled when first imported: compiling all of them at once would take a minute longer.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: install
	$(BIN)/fastslow demo

lint: install
	$(BIN)/ruff format --check src tests benchmarks tools examples setup.py
	$(BIN)/ruff check src tests benchmarks tools examples setup.py
	$(BIN)/basedpyright

test: lint
	$(BIN)/pytest -m 'not slow and not gpu' -n $(JOBS)

test-all: lint
	$(BIN)/pytest -m 'not gpu' -n $(JOBS)

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: install
	$(BIN)/python -m build

clean:
	rm -rf .venv build dist site src/*.egg-info
