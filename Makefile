# Every target works from a clean clone: it creates .venv first if that is missing or out of date.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# `test` means lint, then unit, then Spark, in that order even under -j.
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.PHONY: help setup check-java demo test lint test-unit test-spark chaos bench compare clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## create .venv with everything needed (again only when pyproject.toml or constraints.txt changed)

$(READY): pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory check-java
	@python=""; \
	for candidate in python3 python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    python="$$candidate"; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "Penstock needs Python 3.11 or newer with the venv module; tried python3, python3.13, python3.12, python3.11." >&2; \
	  echo "Install one, e.g.: apt-get install python3.11 python3.11-venv" >&2; \
	  exit 1; \
	fi; \
	"$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

check-java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	answer="$$("$$java" -version 2>&1 || true)"; \
	major="$$(sed -n 's/.* version "\([0-9]*\).*/\1/p' <<<"$$answer" | head -n 1)"; \
	if [ "$${major:-0}" -lt 17 ]; then \
	  echo "Spark needs Java 17 or newer, but '$$java -version' answered: $$(head -n 1 <<<"$$answer")" >&2; \
	  echo "Install one, e.g.: apt-get install openjdk-17-jre-headless" >&2; \
	  echo "or point JAVA_HOME at an installed one." >&2; \
	  exit 1; \
	fi

demo: $(READY) ## run the demonstration
	$(BIN)/penstock demo

test: lint test-unit test-spark ## lint, unit and simulation tests, tests on real Spark

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-unit: $(READY) ## unit tests and seeded simulation, no Spark
	$(BIN)/pytest tests/unit tests/simulation -n 2 -q

test-spark: $(READY) ## tests on real Spark
	$(BIN)/pytest tests/spark -q

chaos: $(READY) ## the slow suite: real processes, killed at random
	$(BIN)/pytest tests -m slow --timeout=1800 -q

bench: $(READY) ## measure this machine
	$(BIN)/penstock bench

compare: $(READY) ## Penstock, Flink, Spark, Bytewax and Polars in one go; options in COMPARE="--quick"
	$(BIN)/python bench/compare.py $(COMPARE)

clean: ## remove build products and caches (keeps .venv)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +
