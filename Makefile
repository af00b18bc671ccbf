# Each target prepares .venv first; PYTHON chooses the interpreter it is made of.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-slow lint bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	$(BIN)/pip install --quiet --no-deps auto-LiRPA==0.3  # its metadata pins a torch of 2022
	touch $@

demo: setup
	$(BIN)/evalsuite run pipelines/recipes/quickstart.yaml --out runs/quickstart
	$(BIN)/evalsuite report runs/quickstart

test: setup
	$(BIN)/pytest

test-slow: setup
	$(BIN)/pytest -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv runs build dist
