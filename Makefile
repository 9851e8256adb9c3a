# The commands of this project. Each is enough by itself: it first installs what is missing.
#
# Variables: TORCH_PYTHON=PYTHON   a Python that has torch (default: .venv, made when missing)
#            PYTHON=python3        the Python that makes .venv
#            JOBS=N                parallel compilers and tests (default: all processors)
#            WERROR=ON             warnings are errors, as in CI
#            STEPS=N               steps of `make train`
#            SLUICE_DEPS=FOLDER    libraries unpacked by scripts/pack_deps.sh

JOBS ?= $(shell nproc)
PYTHON ?= python3
WERROR ?= OFF
TORCH_PYTHON ?=
export JOBS PYTHON WERROR TORCH_PYTHON

.DEFAULT_GOAL := help
.PHONY: help train test test-fast build core asan tsan layering format format-check bench gpu clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1|/' | \
	  while IFS='|' read -r target text; do printf '%-20s %s\n' "$$target" "$$text"; done

train: ## build sluice, train a small model on Python's own library, print a sample
	@scripts/setup.sh
	@scripts/build.sh torch sluice
	@scripts/train.sh

test: ## build everything and run all tests
	@scripts/setup.sh
	@scripts/build.sh torch
	@scripts/test.sh build

test-fast: ## build everything, run the tests that need no torch
	@scripts/setup.sh
	@scripts/build.sh torch
	@scripts/test.sh build -L fast

build: ## build everything into build/; the program is build/sluice
	@scripts/setup.sh
	@scripts/build.sh torch

core: ## build and test the half without torch alone, in build-core/
	@scripts/setup.sh --core
	@scripts/build.sh core
	@scripts/test.sh build-core

asan: ## the same under AddressSanitizer and UndefinedBehaviorSanitizer, in build-asan/
	@scripts/setup.sh --core
	@scripts/build.sh asan
	@scripts/test.sh build-asan

# Of the half without torch only the transports have threads.
tsan: ## the transports' tests under ThreadSanitizer, in build-tsan/
	@scripts/setup.sh --core
	@scripts/build.sh tsan comm_test
	@build-tsan/comm_test --gtest_brief=1

layering: ## which folder may include which one
	@$(PYTHON) tests/layering/check_layering.py
	@$(PYTHON) tests/layering/check_layering.py --self-test

format: ## reformat the C++ sources
	@scripts/setup.sh --core --format
	@scripts/format.sh

format-check: ## fail where clang-format would change something
	@scripts/setup.sh --core --format
	@scripts/format.sh --check

bench: ## the benchmarks, short; see bench/README.md
	@scripts/setup.sh
	@scripts/build.sh torch
	@scripts/bench.sh

gpu: ## parity, memory and speed on an NVIDIA GPU; set TORCH_PYTHON to a Python with CUDA torch
	@scripts/check_gpu.sh

clean: ## remove the build folders (not .venv, not runs/)
	rm -rf build build-core build-asan build-tsan
