.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FLOWER := $(VENV)/.flower
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)

.PHONY: docs help run test test-slow check format bench federation browser setup clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv and install everything (the other commands do it by themselves)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet -c constraints.txt torch
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $(STAMP)

$(FLOWER): $(STAMP)
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,flower]"
	@touch $(FLOWER)

run: $(STAMP)  ## train on MovieLens-100K and print metrics and recommendations
	@$(BIN)/tacit run

test: $(FLOWER)  ## run the tests
	@$(BIN)/python -m pytest -m "not slow" -n auto --dist worksteal

test-slow: $(FLOWER)  ## run the end-to-end checks on real data (minutes)
	@$(BIN)/python -m pytest -m slow

browser: $(FLOWER)  ## install a browser for the tests of pages (Debian and Ubuntu); without one they are skipped
	@test -x /usr/bin/chromium-headless-shell || { $(SUDO) apt-get update -q && \
		$(SUDO) apt-get install -y -q --no-install-recommends chromium-headless-shell fonts-dejavu-core; }
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev,flower,browser]"

check: $(STAMP)  ## ruff, mypy --strict and the layers between rooms
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest tests/test_layers.py

format: $(STAMP)  ## let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP)  ## measure the engine against a plain loop; writes benchmarks/results/*.json
	@$(BIN)/python -m benchmarks

docs: $(STAMP)  ## build the site into site/
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	@$(BIN)/python tools/site.py
	@$(BIN)/zensical build --strict --clean

federation: $(FLOWER)  ## a server and three nodes on this machine, over TLS, on MovieLens-100K
	@$(BIN)/python -m benchmarks.federation

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis
