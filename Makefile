# make run   installs the light package, without PyTorch, into .venv and generates text with the shipped model
# make full  installs PyTorch too: for training, tuning, GPUs and attribution by gradients
# make test  installs everything: style, types and all tests
# Also: `make quick` (without the slow tests), `make test-native` (the C++ engine with sanitizers), `make style`, `make bench`, `make docs`, `make licences`, `make clean`.

PYTHON ?= python3
BIN := .venv/bin
ifeq ($(OS),Windows_NT)
BIN := .venv/Scripts
endif
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# One thread per test process: two processes with two threads each would wait for each other on two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

NPM := $(shell command -v npm 2>/dev/null)
# no: install nothing outside this folder.
CHROMIUM ?= yes

.PHONY: run full test quick native test-native test-clients test-ray style page-tools chromium licences bench docs clean

run: .venv/installed native
	$(BIN)/glassgpt generate "The old house stood at the end of the lane, and"

full: .venv/installed-full

test: style chromium native
	$(PYTEST)

quick: style chromium native
	$(PYTEST) -m "not slow"

style: .venv/installed-dev page-tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	@if [ -d node_modules/typescript ]; then npm run --silent check; \
	else echo "SKIPPED: types and style of the Explorer's page (tsc, eslint), because npm or its registry is not available"; fi

# The C++ engine. Installing the package builds it; this builds it again after a change, or says why it cannot.
native: .venv/installed
	@$(BIN)/python src/glassgpt/native/build.py --if-stale

# Its tests with the address and undefined-behaviour sanitizers; those that compile a program run without them, for the
# compiler would be watched as well.
SANITIZED := build/engine-sanitized.so
COMPILING := test_build.py or test_kernels.py or test_threads.py
SANITIZER := $(shell c++ -print-file-name=libasan.so 2>/dev/null) $(shell c++ -print-file-name=libstdc++.so.6 2>/dev/null)
test-native: .venv/installed-dev
	$(BIN)/python src/glassgpt/native/build.py --sanitize $(SANITIZED)
	GLASSGPT_NATIVE=$(CURDIR)/$(SANITIZED) LD_PRELOAD="$(SANITIZER)" ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=2 \
	  $(BIN)/python -m pytest tests/native tests/test_backend.py -k "(native or Native) and not ($(COMPILING))" -p no:cacheprovider
	$(PYTEST) tests/native -k "$(COMPILING)"

# Tools that check the page and are not part of it. npm ci installs exactly what package-lock.json locks by hash.
page-tools:
ifneq ($(NPM),)
	@[ node_modules/.installed -nt package-lock.json ] || { npm ci --silent --no-audit --no-fund --fetch-retries 1 \
	  && touch node_modules/.installed; } || echo "npm could not install the page's tools"
endif

# The page is tested in a real browser. Without one, these tests are skipped and say so.
chromium:
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then exit 0; fi > /dev/null; \
	if [ "$(CHROMIUM)" != no ] && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "installing the package chromium with apt-get, as root (to prevent it: make test CHROMIUM=no)"; \
	  { timeout 300 apt-get install -y -qq chromium \
	    || { timeout 120 apt-get update -qq && timeout 300 apt-get install -y -qq chromium; }; } \
	    > /dev/null 2>&1 && exit 0; \
	fi; \
	echo "SKIPPED: tests of the Explorer's page in Chromium; install it to run them"

# Real clients, unmodified, against a server started by its command. Those too heavy for the tests' own environment get
# .venv-clients; promptfoo is from npm, and skipped visibly where that cannot install it.
test-clients: .venv/installed-dev
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/pip install --quiet --disable-pip-version-check -r tests/serve/clients/requirements.txt
	@[ -x .venv-clients/node_modules/.bin/promptfoo ] \
	  || npm install --prefix .venv-clients --silent --no-audit --no-fund --fetch-retries 1 promptfoo \
	  || echo "SKIPPED: promptfoo, because npm or its registry is not available"
	$(PYTEST) -n 1 -rs tests/serve/test_clients.py tests/serve/test_openai.py tests/serve/test_lm_eval.py

# The server on a Ray cluster of two nodes, on this machine.
test-ray:
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/pip install --quiet --disable-pip-version-check -e '.[serve,ray]' pytest httpx
	.venv-ray/bin/python -m pytest -rs tests/serve/test_ray.py

# Every dependency and its licence.
licences: .venv/installed-dev
	@$(BIN)/python docs/licences.py

bench: .venv/installed-dev
	$(BIN)/python benchmarks/tokenizer.py
	$(BIN)/python benchmarks/weights.py
	$(BIN)/python benchmarks/sampling.py
	$(BIN)/python benchmarks/taps.py
	$(BIN)/python benchmarks/trace.py
	$(BIN)/python benchmarks/generate.py

docs: .venv/installed-full
	$(PIP) -e '.[docs]'
	$(BIN)/sphinx-build -W --keep-going -q docs site
	@echo "the documentation is in site/index.html"

clean:
	rm -rf .venv node_modules site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'GlassGPT needs Python 3.11 or newer: make run PYTHON=python3.11')"
	$(PYTHON) -m venv .venv
	@echo "installing into .venv"
	$(PIP) -e '.[serve]'
	@touch $@

.venv/installed-full: .venv/installed
	@echo "installing PyTorch into .venv (it is large: this may take a few minutes)"
	$(PIP) -e '.[torch,serve]'
	@touch $@

.venv/installed-dev: .venv/installed-full
	$(PIP) -e '.[torch,serve,dev]'
	@touch $@
