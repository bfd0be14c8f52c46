PORT ?= 8501
HOST ?= localhost
PYTHON ?= python3
PY := .venv/bin/python

.PHONY: setup run test lint bench

setup: .venv/warm

run: .venv/warm
	$(PY) -m streamlit run app.py --server.port $(PORT) --server.address $(HOST)

test: .venv/warm .venv/dev
	$(PY) -m pytest -n auto

lint: .venv/dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m pyright

bench: .venv/warm .venv/dev
	$(PY) tests/bench.py

# Set-up is files newer than what they were made from, so that a second call has nothing to do.
.venv/ready: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "slotscope needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.12")'
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@echo "Installing what requirements.txt names into .venv (torch is the large one: see README)"
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

.venv/dev: .venv/ready requirements-dev.txt
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

.venv/warm: .venv/ready $(shell find sim -name '*.py')
	@echo "Compiling the simulator for this machine, once (about 30 s)"
	@$(PY) -m sim warm
	@touch $@
