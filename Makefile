# Few verbs. `make demo` and `make test` set everything up by themselves on a fresh machine.

PYTHON ?= python3
VENV ?= .venv
TORCH_VERSION = 2.13.0
# The package index torch comes from; empty: pip's own. A CPU-only index saves gigabytes.
TORCH_INDEX ?=
BIN = $(VENV)/bin
VLLM_VENV = .venv-vllm

.PHONY: help demo test fuzz soak docs audit test-hosts system-packages test-vllm check fix sim bench setup clean

help: ## these lines
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: setup ## see a small engine speculate with a real worker's drafts
	$(BIN)/dsparkctl demo

test: setup ## every test
	$(BIN)/python -m pytest

test-hosts: setup .venv-ansible/installed ## three real systems that this machine boots (root; make system-packages)
	cd ansible && PATH="$(abspath .venv-ansible/bin):$$PATH" ansible-lint --offline --profile production
	$(BIN)/python -m pytest -m '' tests/hosts --durations=0

.venv-ansible/installed: Makefile
	$(PYTHON) -m venv .venv-ansible
	.venv-ansible/bin/python -m pip install --quiet ansible-core==2.19.14 ansible-lint==26.10.1 \
		molecule==26.10.0
	touch $@

system-packages: ## what tests of SSH, real hosts, metrics and libfabric need from Debian (root)
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-server openssh-client sudo nftables \
		iproute2 iputils-ping procps mmdebstrap systemd-container prometheus tshark gcc libc6-dev libfabric-dev

test-vllm: setup $(VLLM_VENV)/installed ## the real vLLM engine on a CPU with our hook (3 GB, minutes)
	DSPARK_RIG_PYTHON=$(abspath $(VLLM_VENV))/bin/python $(BIN)/python -m pytest tests/vllm/check_engine.py

fuzz: setup ## every parser against a million spoilt inputs, guided by coverage; INPUTS=
	$(BIN)/python -m pip install --quiet --constraint dsparkctl/constraints.txt --group fuzz
	$(BIN)/python -m tests.fuzz --inputs $(or $(INPUTS),1000000) $(if $(KEEP),--keep)

docs: setup ## the site, in build/site; every link and page checked
	$(BIN)/python -m pip install --quiet --constraint dsparkctl/constraints.txt --group docs
	$(BIN)/mkdocs build --quiet

audit: setup ## bandit over the sources, pip-audit over what is installed where its service answers
	$(BIN)/python -m pip install --quiet --constraint dsparkctl/constraints.txt --group audit
	$(BIN)/bandit --quiet --recursive --severity-level medium dsparkctl worker
	-$(BIN)/pip-audit --progress-spinner off

soak: setup ## worker and engine for MINUTES= under faults, outputs checked, memory watched
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1)

sim: setup ## torture both sides on simulated time; SEED=17 for one seed
	$(BIN)/dsparkctl simulate --seeds $(if $(SEED),$(SEED):$$(($(SEED)+1)),0:50)

check: setup ## format, lint, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: setup ## what the formatter and the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## the figures of benchmarks/README.md
	$(BIN)/python -m pip install --quiet --constraint dsparkctl/constraints.txt --group bench
	$(BIN)/python -m benchmarks.transport --svg benchmarks/transport.svg
	$(BIN)/python benchmarks/codec.py
	$(BIN)/python benchmarks/identity_hash.py
	$(BIN)/python benchmarks/gil.py
	$(BIN)/python benchmarks/exl3_decode.py
	PYTHONPATH=. $(BIN)/python benchmarks/upload.py
	$(BIN)/python benchmarks/recorder.py
	$(BIN)/python benchmarks/end_to_end.py
	PYTHONPATH=. $(BIN)/python benchmarks/floods.py

setup: $(VENV)/installed

# torch is pinned by version, not by hash: its builds differ from host to host.
$(VENV)/installed: pyproject.toml dsparkctl/constraints.txt Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint dsparkctl/constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint dsparkctl/constraints.txt \
		$(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$(TORCH_VERSION)
	$(BIN)/python -m pip install --quiet --constraint dsparkctl/constraints.txt \
		--group dev --editable '.[worker]'
	touch $@

# Linux on x86_64 with Python 3.11: that is what the hashes are of.
$(VLLM_VENV)/installed: tests/vllm/requirements.txt pyproject.toml Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "the vLLM rig needs Python 3.11: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet \
		$(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$(TORCH_VERSION)
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps --require-hashes \
		--requirement tests/vllm/requirements.txt
	$(VLLM_VENV)/bin/python -m pip install --quiet --no-deps --editable .
	touch $@

clean: ## remove the environment and every cache
	rm -rf $(VENV) $(VLLM_VENV) .venv-ansible .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
