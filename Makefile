# Every habit is one command. `make demo` and `make test` set up all they need.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SITE ?= .demo

# ONNX Runtime phones home by default; it is off before any process of ours can import it.
export ORT_DISABLE_TELEMETRY := 1
export PYTHONDONTWRITEBYTECODE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help dev demo test ci check fix crash fuzz vectors docs proto bench bench-hostile bench-ledger bench-peers judges lock clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "pellucid needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

# One stamp a lock: each lock holds the smaller ones, so the same environment only grows.
$(VENV)/.installed-%: requirements/%.txt pyproject.toml | $(BIN)/python
	@echo "installing requirements/$*.txt, pinned by hash: about a minute"
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/$*.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

dev: $(VENV)/.installed-dev ## everything for working on the project

demo: $(VENV)/.installed-demo ## walk the whole chain on real data, then try to cheat it
	@$(BIN)/python examples/demo.py --folder $(SITE)

test: $(VENV)/.installed-test judges ## every test that needs no GPU
	@$(BIN)/python -m pytest $(ARGS)

# pytest comes last: its summary line is the verdict
ci: $(VENV)/.installed-dev check judges ## what the gate runs: checks, then all tests, nothing silently left out
	@$(BIN)/python -m pytest --not-run-allowed tests/not_run_allowed.txt $(ARGS)

judges: $(VENV)/.installed-test ## programs nobody here wrote, each in its own environment
	@$(BIN)/python tests/judges/make_venvs.py all

check: $(VENV)/.installed-dev ## style, types, walls of the house
	@$(BIN)/ruff format --check --quiet . || { echo "run: make fix"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

fix: $(VENV)/.installed-dev ## put style right
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix --quiet .

crash: $(VENV)/.installed-test ## only the kill -9 tests
	@$(BIN)/python -m pytest -m crash $(ARGS)

fuzz: $(VENV)/.installed-test ## the fuzz targets, for longer
	@PELLUCID_FUZZ_EXAMPLES=20000 $(BIN)/python -m pytest tests/fuzz $(ARGS)

vectors: $(VENV)/.installed-test ## write the vectors again; git must stay clean
	@$(BIN)/python vectors/generate.py
	@$(BIN)/python vectors/package/generate.py
	@git diff --exit-code --stat -- vectors

docs: $(VENV)/.installed-test ## write the generated reference pages again
	@$(BIN)/python docs/generate.py

proto: $(VENV)/.installed-test ## compile the gRPC messages again
	@cd src/pellucid/servers/_generated && \
	  $(CURDIR)/$(BIN)/python -m grpc_tools.protoc -I. --descriptor_set_out=inference.binpb inference.proto

bench: bench-ledger bench-peers ## ratios, half an hour on a quiet machine; writes bench/RESULTS.md

bench-ledger: $(VENV)/.installed-test ## with and without the ledger
	@$(BIN)/python bench/bench.py $(ARGS)

bench-hostile: $(VENV)/.installed-test ## ten thousand idle connections and other hostile clients; draws memory
	@$(BIN)/python bench/hostile.py $(ARGS)

bench-peers: $(VENV)/.installed-test ## beside Triton, MLServer, KServe, Mosec (ARGS=--install brings them)
	@$(BIN)/python bench/compare.py $(ARGS)

lock: ## write the hash-pinned locks again (needs uv)
	@requirements/lock.sh

clean: ## remove what make made
	rm -rf $(VENV) .venvs .demo build dist src/*.egg-info
