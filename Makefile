# Two commands do everything on a bare Debian 12: `make demo` and `make test`.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made
UV_COMPILE := $(BIN)/uv pip compile --quiet --no-config --generate-hashes --no-emit-index-url \
	--no-header --universal --python-version 3.11 $(if $(UPGRADE),--upgrade)

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- set-up -------------------------------------------------------------------------------------

.PHONY: venv services lock
venv: $(STAMP) ## make the virtual environment from the locked requirements

$(STAMP): requirements/dev.lock pyproject.toml tools/venv.sh
	@tools/venv.sh $(VENV)
	@touch $@

services: ## install the programs of MariaDB and Redis where they are missing (as root)
	@tools/services.sh

lock: $(STAMP) ## renew requirements/*.lock after a change in pyproject.toml (UPGRADE=1: newest)
	$(UV_COMPILE) pyproject.toml --all-extras --group dev -o requirements/dev.lock
	$(UV_COMPILE) pyproject.toml --all-extras -c requirements/dev.lock -o requirements/run.lock

# --- use ----------------------------------------------------------------------------------------

.PHONY: demo
demo: $(STAMP) ## the main job, live: server, agent, tasks over MCP, every fire accounted for
	@$(BIN)/crontask demo

.PHONY: demo-batch
demo-batch: $(STAMP) ## batch jobs, live: three nodes, one killed while draining, a failing owner
	@$(BIN)/python -m crontask_cli.batch_demo

.PHONY: proto
proto: $(STAMP) ## make the Python code of the messages for owners of batch jobs again
	cd src/crontask_adapters/proto && ../../../$(BIN)/python -m grpc_tools.protoc -I . \
		--python_out=. --pyi_out=. crontask_batch.proto

# --- check --------------------------------------------------------------------------------------

.PHONY: test test-fast test-mysql lint
test: $(STAMP) services lint ## everything CI runs
	$(BIN)/python -m pytest $(ARGS)

test-fast: $(STAMP) ## unit tests: no services, under 30 s
	$(BIN)/python -m pytest tests/unit $(ARGS)

test-mysql: $(STAMP) ## the same suites on a real MySQL, fetched from Debian's unstable branch
	@tools/mysql.sh .mysql
	$(BIN)/python -m pytest -m mysql $(ARGS)

lint: $(STAMP) ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# --- measure ------------------------------------------------------------------------------------

.PHONY: bench
bench: $(STAMP) services ## how fast: a burst, claims, lateness, take-over, empty polls (small)
	$(BIN)/python benchmarks/burst.py --fires 3000 --repeats 1
	$(BIN)/python benchmarks/cluster.py --small

# --- break --------------------------------------------------------------------------------------

.PHONY: chaos chaos-long nightly
chaos: $(STAMP) services ## real nodes killed, frozen and cut off for 60 s; every fire accounted for
	$(BIN)/python -m chaos --seconds 60 $(ARGS)

chaos-long: $(STAMP) services ## the same for 15 minutes
	$(BIN)/python -m chaos --seconds 900 $(ARGS)

nightly: chaos-long ## what takes too long for every commit
	$(BIN)/python -m tests.simulation --seeds 5000 --jobs 2

# --- ship ---------------------------------------------------------------------------------------

.PHONY: wheel clean
wheel: $(STAMP) ## build dist/crontask-*.whl
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist

clean: ## remove what was made
	rm -rf $(VENV) .mysql dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
