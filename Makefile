# make demo    train on 25 Gaussians, evaluate, leave a picture      (about two minutes, set-up aside)
# make test    linters, type checker and every test
# make test-long  the tests that take minutes to hours: 50 kills, 100,000 damaged files each, the soak test
# make fuzz    every reader under atheris, 100,000 inputs each (CASES=1000 for fewer)
# make licences   docs/licences.md, from the metadata of what is installed
# make audit   known vulnerabilities of the pinned versions (needs pip-audit and the index)
# make wheel   the installable package, in dist/
# make clean   remove what these made, except trained runs

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
# Only files whose sha256 is written down; nothing is resolved, since everything is listed.
PINNED := $(PIP) --require-hashes --no-deps --requirement
RUN    := runs/demo

# Small networks run fastest on one thread each; the tests use the cores side by side.
export OMP_NUM_THREADS = 1

.PHONY: demo test test-long fuzz licences audit setup wheel clean

demo: $(VENV)/.installed $(RUN)/.trained
	$(BIN)/ebmbounds evaluate $(RUN)
	@echo "The picture is $(RUN)/density.png, the figures are in $(RUN)/metrics.json."

# Trained once; a run that was stopped half-way is resumed.
$(RUN)/.trained: | $(VENV)/.installed
	@if [ -f $(RUN)/checkpoints/last.safetensors ]; then \
	  $(BIN)/ebmbounds train --resume --run $(RUN); \
	else \
	  rm -rf $(RUN) && $(BIN)/ebmbounds train 25gaussians/ebm-bb@quick --run $(RUN); \
	fi
	@touch $@

test: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

test-long: setup
	$(BIN)/pytest -m long

CASES ?= 100000
fuzz: setup
	$(PINNED) tests/fuzz/requirements.txt
	for target in $$($(BIN)/python tests/fuzz/coverage_guided.py --list); do \
	  $(BIN)/python tests/fuzz/coverage_guided.py $$target -runs=$(CASES) || exit 1; done

licences: setup
	$(BIN)/python tools/licences.py > docs/licences.md

audit:
	$(PYTHON) -m pip_audit --require-hashes --disable-pip --requirement constraints.txt

setup: $(VENV)/.installed $(VENV)/.browser

wheel: setup
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf $(VENV) dist build .pytest_cache .hypothesis .mypy_cache .ruff_cache

# torch without CUDA where pip finds it; else the index's, with the libraries of CUDA.
$(VENV)/.installed: pyproject.toml constraints.txt constraints-cpu.txt constraints-cuda.txt
	$(PYTHON) -m venv $(VENV)
	$(PINNED) constraints.txt
	$(PINNED) constraints-cpu.txt 2>/dev/null || $(PINNED) constraints-cuda.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# Pages are tested in a real browser: Debian's, where apt may install it. Without one those tests are skipped.
$(VENV)/.browser: $(VENV)/.installed
	@command -v chromedriver >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	  apt-get install -y -qq chromium chromium-driver; } >/dev/null 2>&1 || \
	  echo "no chromium here, and no apt to install it with: the tests in a browser are skipped"
	@touch $@
