# Two commands need nothing but Python 3.11 or newer:
#   make demo    sets up .venv, trains a robot arm with PPO, shows it beside a random policy, leaves a curve and a GIF
#   make test    the quick tests
# A second call installs nothing. PYTHON=... chooses the interpreter, VENV=... the place.

SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install -qq --no-compile -c constraints.txt
export PIP_ROOT_USER_ACTION := ignore
WORKERS ?= 2
DEMO ?= runs/demo

.PHONY: help demo test test-all test-rest lint format bench clean

help:
	@sed -n 's/^#  *\(make .*\)/\1/p' Makefile
	@echo "make test-all | make lint | make format | make bench | make clean"

$(BIN)/python:
	@python=$$(scripts/find-python $(PYTHON)) && echo "using $$python" && "$$python" -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing mjxlab into $(VENV) (a few minutes the first time)"
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing mjxlab and its development tools into $(VENV) (a few minutes the first time)"
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed

demo: $(VENV)/.installed
	@$(BIN)/mjxlab train ppo arm_reach --run-dir $(DEMO) --gif

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not x64"

# What `make test` leaves out.
test-rest: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m "slow or x64"

test-all: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -q -n $(WORKERS)

# The type checker looks at the package as a wheel installs it, not at the source tree.
lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@scripts/check-types $(BIN)/python

format: $(VENV)/.installed-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.installed-dev
	@$(BIN)/python benchmarks/physics.py
	@$(BIN)/python benchmarks/ppo_brax.py speed

clean:
	@rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
