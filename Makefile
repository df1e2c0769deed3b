# The one vocabulary of this project, for people and for CI. `make help` lists it.
# Targets are quick when nothing changed: what was installed is remembered by stamp files in the virtual environment.

PYTHON ?= python3
VENV ?= .venv
# For a GPU, as pytorch.org says, for example: make demo TORCH="torch numpy --extra-index-url https://download.pytorch.org/whl/cu128"
TORCH ?= torch==2.13.0 numpy
ARGS ?=
# `make test` has three parts. Tests that start little run side by side, five for two cores, since they mostly wait. Then
# three for two cores those that start a job, and one by one those that judge times or what is used (marker alone).
# A name of a socket has 107 characters at most: hence a short folder for what the tests write.
# In a new clone each worker would compile all tests: they are compiled once before, a share of them on each CPU.
SMALL := $(addprefix tests/,core config engine ports queries wiring proto report benchmarks sim soak edges worker_client cli) \
	$(addprefix tests/programs/,attribution doctor log_service) $(wildcard tests/test_*.py tests/seeds/test_*.py)
PURE := $(addprefix tests/,core config proto report sim)
RESTARTS ?= 2000
CHAOS_S ?= 600
PAUSES_S ?= 3600

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q install

.DEFAULT_GOAL := help
# The distribution was once called holdfast, a name that is another project's on the package index: ours goes, theirs stays.
OLD_NAME := $(VENV)/lib/python*/site-packages/holdfast-*.dist-info/entry_points.txt
.PHONY: help demo demo-cluster install wheel dist unit test packages lint ruff format type layers gpu bench soak sim docs docs-check docs-site pictures proto clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '%-12s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.holdfast ## train a small model while ranks are killed, hang and hold the GIL; about a minute
	$(BIN)/python docs/examples/demo.py $(ARGS)

demo-cluster: $(VENV)/.holdfast ## the same training on three nodes of this machine; a node is lost, then, with etcd, the leader's; two minutes
	$(BIN)/python -m docs.examples.demo_cluster $(ARGS)

install: $(VENV)/.holdfast ## a virtual environment, .venv, with torch and holdfast
	@echo 'installed: . $(BIN)/activate, then holdfast --help'

wheel: $(VENV)/.venv ## build dist/holdfast_torch-….whl, to install elsewhere
	$(BIN)/python -m pip --disable-pip-version-check -q wheel --no-deps --wheel-dir dist .
	@ls dist/holdfast_torch-*.whl

dist: $(VENV)/.venv ## build wheel, sdist, SBOM and the package for this Debian into dist/; the same commit gives the same bytes
	$(PIP) --group dist
	deploy/build-dist $(BIN)/python dist all
	@ls dist

unit: $(VENV)-unit/.unit ## what is pure, in an environment of its own without torch: core, configuration, wire, report, simulator; a minute
	$(VENV)-unit/bin/python -m pytest -n auto --dist worksteal -m 'not soak and not peers' --ignore=tests/report/test_page_in_browser.py $(ARGS) $(PURE)

test: $(VENV)/.dev $(VENV)/.e2e $(VENV)/.docs packages ## install what the tests need and run them all
ifneq ($(findstring tests/,$(ARGS)),)
	$(BIN)/python -m pytest $(ARGS)
else
	@[ -d tests/__pycache__ ] || { \
		for share in $$(seq 0 $$(($$(nproc) - 1))); do \
			$(BIN)/python -m pytest --collect-only -qq \
				$$(find tests -name 'test_*.py' | sort | awk "NR % $$(nproc) == $$share") >/dev/null & \
		done; \
		wait; \
	}; \
	code=0; \
	part() { \
		temp=$$(mktemp -d /tmp/hf-XXXXXX) || exit; \
		$(BIN)/python -m pytest --basetemp=$$temp "$$@" $(ARGS) && rm -rf $$temp || code=1; \
	}; \
	part -n $$((5 * $$(nproc) / 2)) --dist worksteal -m 'not soak and not alone' $(SMALL); \
	part -n $$(((3 * $$(nproc) + 1) / 2)) --dist loadfile -m 'not soak and not alone' $(addprefix --ignore=,$(SMALL)); \
	part -m 'alone and not soak' $$(grep -rl --include='test_*.py' mark.alone tests); \
	exit $$code
endif

packages: ## Debian packages that the tests need (as root; else says what is missing)
	@.ci/debian-packages

lint: ruff layers type ## ruff, import layers, pyright strict

ruff: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

type: $(VENV)/.docs
	$(BIN)/pyright --threads 2 --pythonpath $(BIN)/python

layers: $(VENV)/.dev ## who may import whom
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev ## rewrite the sources as `make lint` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

gpu: ## the tests that need a GPU, with an interpreter that has torch, holdfast and the dependency group gpu: make gpu PYTHON=python3
	$(PYTHON) -m pytest -m gpu tests/gpu $(ARGS)

bench: $(VENV)/.dev ## measure against torchrun and the reference product, write docs/benchmarks.md
	$(BIN)/python -m tests.benchmarks $(ARGS)

soak: $(VENV)/.e2e packages ## the tests that take long, 2,000 restarts, chaos, other people's scripts, torn networks, an hour of pauses, a hostile user: hours; shorter: make soak RESTARTS=200 CHAOS_S=60 PAUSES_S=60
	$(BIN)/python -m pytest -m soak tests
	$(BIN)/python -m pytest -n auto -m 'not soak and not alone' --hypothesis-profile=soak \
		$$(grep -rl --include='test_*.py' 'from hypothesis import' tests)
	$(BIN)/python -m tests.soak restarts --restarts $(RESTARTS)
	$(BIN)/python -m tests.soak chaos --seconds $(CHAOS_S) $(ARGS)
	$(BIN)/python -m tests.soak others --seconds $(CHAOS_S) $(ARGS)
	$(BIN)/python -m tests.soak cluster --seconds $(CHAOS_S) $(ARGS)
	$(BIN)/python -m tests.soak supervisor-kills --seconds $(CHAOS_S) $(ARGS)
	$(BIN)/python -m tests.soak hostile-user --seconds $(CHAOS_S) $(ARGS)
	$(BIN)/python -m tests.soak pauses --seconds $(PAUSES_S)
	$(BIN)/python -m tests.soak fuzz
	$(BIN)/python -m tests.soak packages
	$(BIN)/python -m tests.soak lowest
	$(BIN)/python -m tests.soak rules

sim: $(VENV)/.dev ## simulate jobs on many nodes under random faults, 10,000 seeds; more: make sim ARGS='--seeds 100000'
	$(BIN)/python -m tests.sim $(ARGS)

docs: $(VENV)/.dev ## regenerate what docs/ has from the code
	@set -e; for script in docs/make_*.py; do echo "$$script"; $(BIN)/python "$$script"; done

docs-site: $(VENV)/.docs docs/site/static/mermaid.min.js ## build the documentation site, strictly, into build/site
	$(BIN)/python -m sphinx -q -W -n --keep-going -c docs/site docs build/site
	@echo 'the site: build/site/index.html, with its search: python3 -m http.server -d build/site'

pictures: $(VENV)/.dev ## draw docs/pictures from real terminals of this machine (as root); look at them
	$(BIN)/python -m docs.draw_pictures

docs-check: $(VENV)/.dev ## fail if `make docs` would change something
	$(BIN)/python -m pytest tests/test_tidy.py -k docs

proto: ## regenerate the protobuf stubs
	proto/generate.sh

clean: ## remove what these targets made
	rm -rf $(VENV) $(VENV)-unit build dist demo-output demo-cluster-output docs/site/static/mermaid.min.js .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("cannot use Python %s: Holdfast needs 3.11 or newer; name another by make PYTHON=…" % sys.version.split()[0])'
	@$(PYTHON) -m venv $(VENV) || { echo 'cannot make a virtual environment: see above; on Debian and Ubuntu: apt-get install python3-venv' >&2; exit 1; }
	$(PIP) --upgrade 'pip>=25.1'
	@touch $@

# A TORCH that somebody names is installed, even if another one was: the stamp has the name.
ifneq ($(origin TORCH),file)
ifneq ($(TORCH),$(file <$(VENV)/.torch))
.PHONY: $(VENV)/.torch
endif
endif
$(VENV)/.torch: export NAMED = $(TORCH)
$(VENV)/.torch: $(VENV)/.venv
	@echo "installing $$NAMED into $(VENV): pip brings CUDA, several GB; for the CPU alone, see docs/installation.md"
	@[ ! -e $@ ] || $(BIN)/python -m pip -q uninstall -y torch # else pip keeps one of the same version for CUDA or the CPU
	$(PIP) $(TORCH)
	@printf '%s\n' "$$NAMED" >$@

$(VENV)/.holdfast: pyproject.toml $(VENV)/.torch
	@if grep -qs 'supervisor.cli:main' $(OLD_NAME); then $(BIN)/python -m pip -q uninstall -y holdfast; fi
	$(PIP) --editable '.[supervisor,top]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.holdfast
	$(PIP) --group dev
	@touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.dev
	$(PIP) --group docs
	@touch $@

docs/site/static/mermaid.min.js: docs/site/fetch_mermaid.py $(VENV)/.dev
	$(BIN)/python $<

$(VENV)/.e2e: pyproject.toml $(VENV)/.dev
	$(PIP) --group e2e
	@touch $@

# Beside the other one: it has no torch, and none of the packages that only edges need.
$(VENV)-unit/.unit: pyproject.toml
	@$(PYTHON) -m venv $(VENV)-unit
	$(VENV)-unit/bin/python -m pip --disable-pip-version-check -q install --upgrade 'pip>=25.1'
	$(VENV)-unit/bin/python -m pip --disable-pip-version-check -q install --group unit --editable .
	@touch $@
