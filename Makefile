# Everything runs in .venv, which the first call makes. `make test` and `make demo` are the two to know.
PYTHON ?= python3
BIN := .venv/bin

# Two threads on two shared cores train several times slower than one.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help demo test test-gpu install readme nbs docs clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

demo: install ## run the whole loop on built-in data; report in reports/demo
	MPLBACKEND=agg PYTHONWARNINGS=ignore $(BIN)/closed_loop_demo --out reports/demo

test: install ## notebooks, pytest, and a check that generated files are in step
	MPLBACKEND=agg $(BIN)/python tools/test_nbs.py
	MPLBACKEND=agg $(BIN)/pytest -q -n 2 --dist loadfile tests
	$(BIN)/python tools/in_step.py
	@echo "make test: notebooks, pytest and generated files all pass."

test-gpu: install ## what only a GPU can show; skipped without one
	$(BIN)/pytest -q -m gpu tests

install: .venv/.installed ## make .venv and install the library with its tools

.venv/.installed: settings.ini setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "closed_loop needs Python 3.10 or newer: set PYTHON=/path/to/python3."; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) lacks the venv module: install it (on Debian and Ubuntu: apt install python3-venv)."; exit 1; }
	@echo "Installing into .venv: a few minutes and about 6 GB the first time."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

readme: install ## README.md from nbs/index.ipynb
	$(BIN)/python tools/readme.py

nbs: install ## run notebooks and store their outputs; NB="nbs/00_core.ipynb ..." for some
	$(BIN)/python tools/run_nbs.py $(NB)

docs: install readme ## the website, in _docs: by Quarto where it can be had, else by Sphinx
	$(BIN)/python -W ignore tools/docs.py

clean: ## remove what the other targets made, except .venv
	rm -rf _docs _proc reports build dist *.egg-info .pytest_cache
	find closed_loop nbs tests tools -name __pycache__ -o -name .ipynb_checkpoints | xargs rm -rf
