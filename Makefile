# Everything a newcomer needs: `make demo` and `make test` work on a bare checkout.
# They need Python 3.11 or newer and a network to install from; the rest is set up here.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SEED ?=
# Tests wait for processes more than they work: more workers than this machine has cores keep it busy.
WORKERS ?= 5
LONG_WORKERS ?= 3

# A run starts several processes; each would compile what it imports where Python may not write.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo cluster test long lint types docs client typed protos house bench chaos clean

help: ## Show the targets
	@awk -F ':.*## ' '/^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Begin
setup: $(VENV)/.ready ## Set up .venv with everything, and Java where it is missing

$(VENV)/.ready: pyproject.toml uv.lock scripts/setup
	@PYTHON=$(PYTHON) sh scripts/setup $(VENV)
	@touch $@

$(VENV)/.browser: scripts/browser
	@sh scripts/browser
	@touch $@

demo: setup ## Run a real pipeline on the embedded defaults and watch it
	@$(BIN)/ebbflow demo

##@ Change something
test: setup $(VENV)/.browser ## Run all tests (make test ARGS="-k nack" for some)
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: setup ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup ## Check types
	$(BIN)/mypy

docs: setup ## Serve the documentation at http://localhost:8000 while you write it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --strict

client: setup ## Generate the blocking client from the one for asyncio
	$(BIN)/python scripts/blocking_client.py

typed: setup ## Generate the classes of connectors and limits from their models
	$(BIN)/python scripts/typed_parts.py

protos: setup ## Compile the .proto files of the protocol of functions
	$(BIN)/python scripts/protos.py

house: setup ## Print files, lines and functions by package (make house ARGS=main~50 compares)
	$(BIN)/python scripts/house.py $(ARGS)

##@ Before a release
long: setup $(VENV)/.browser ## Run the tests that make test leaves out because they take long
	EBBFLOW_TEST_LONG=1 $(BIN)/pytest -m long -n $(LONG_WORKERS) --dist loadfile $(ARGS)

chaos: setup ## Kill pipelines and NATS nodes with -9 and count what arrives (SEED=n to repeat a run)
	$(BIN)/python -m tests.chaos.kill_and_restart --kills 20 --messages 50000 $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.kill_and_restart --kills 5 --messages 10000 --form mono $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.kill_and_restart --kills 20 --messages 100000 --rate 2000 --form storm --hit any $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.kill_and_restart --kills 20 --messages 100000 --rate 2000 --form chain --hit any $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.http_kill --messages 200000 --kills 10 $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.serving_kill --requests 20000 --kills 10 $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.kafka_kill --records 100000 --kills 2 $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.postgres_kill --messages 500000 $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.pulsar_kill --records 100000 --kills 2 $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.outage --role sink --seconds 120
	$(BIN)/python -m tests.chaos.outage --role source --seconds 20
	$(BIN)/python -m tests.chaos.outage --role api --seconds 20
	$(BIN)/python -m tests.chaos.function_kill --kills 20 --messages 20000 $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m tests.chaos.kill_nodes --messages 100000 --every 5 $(if $(SEED),--seed $(SEED))

bench: setup ## Measure Ebbflow next to its peers; table, plot and JSON in benchmarks/results
	$(BIN)/python -m benchmarks $(ARGS)

##@ More
cluster: setup ## Run three NATS nodes on this machine until Ctrl-C (see docs/guides/cluster.md)
	@$(BIN)/python -m examples.cluster.start

clean: ## Remove what setup and runs have left
	rm -rf $(VENV) .ebbflow .pytest_cache .mypy_cache .ruff_cache .hypothesis

