# Everything runs in .venv, which `make setup` builds with venv and pip alone.

PYTHON ?= python3
UV ?= uv
WORKERS ?= auto
OLDEST_PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
BUILDER := build/wheels
RELEASE := build/release
OLDEST := build/oldest

DISTRIBUTIONS := . ./providers/cosmos ./providers/dynamo ./providers/mongo ./providers/spanner ./tables ./spark \
	./conformance ./tools/emulators
# They are installed here, and never published.
TOOLS := ./tools
PROJECTS := $(addsuffix /pyproject.toml,$(DISTRIBUTIONS) $(TOOLS))
PIP := $(BIN)/python -m pip --disable-pip-version-check

# What a change most likely breaks: API, SPI and engine, the suite on the simulation and on the embedded store, the
# command line, and of each provider what it does without a server.
CHECKED := tests cli tables/tests conformance/tests/test_faults.py conformance/tests/test_mutants.py \
	conformance/tests/test_us8_simulation.py conformance/tests/test_delegating.py providers/embedded/tests \
	$(wildcard $(foreach name,errors mapping position,providers/*/tests/test_$(name).py)) \
	docs/tests/test_reference.py docs/tests/test_us8.py

# What meets other people's packages: us8 with each provider's SDK, the private names of SDKs, the sinks, verify, the
# checkpoint stores, the commands and the tables of pages.
VENDORS := $(wildcard $(foreach name,us8 us8_three us8_scripted errors keys mapping stream transport guards listing looked_up slow_link, \
	providers/*/tests/test_$(name).py)) \
	checkpoints/tests $(foreach name,sink targets verify,tables/postgres/tests/test_$(name).py) \
	tables/verify/tests/test_delta.py tables/verify/tests/test_spark.py spark/tests/test_sinks.py spark/tests/test_targets.py \
	cli/tests/test_commands.py tests/test_dependencies.py tests/test_face.py tests/test_private_names.py

# How long a test may take in `make soak`, and in `make test-tools`. The dump of all threads that pytest writes of a slow
# test reads their frames while they run, which can end a worker; so it comes shortly before the test is ended.
SOAK_SECONDS := --timeout 7200 -o faulthandler_timeout=7140
TOOLS_SECONDS := --timeout 3600 -o faulthandler_timeout=3540

# Where it is set, each of the many processes of the tests would compile the same modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup check test soak test-oldest test-tools lint format mutate explore demo bench bench-peers docs wheels release-check lock clean

help: ## list these targets
	@echo "make TARGET, where TARGET is one of"
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 15

setup: $(VENV)/.workspace ## build .venv; a repeat does only what has changed

check: lint ## lint, and the tests that a change most likely breaks: three minutes at most
	$(BIN)/python -m pytest -n $(WORKERS) --quick $(ARGS) $(CHECKED)

test: setup ## run all tests in parallel; WORKERS=0 runs them in one process, ARGS=... goes to pytest
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

soak: setup ## run the tests with hundreds of lives, seeds or rows; prints the seed of a failure
	$(BIN)/python -m pytest -n $(WORKERS) --soak $(SOAK_SECONDS) $(ARGS)
	@# us8 through asyncio: the tests of `make test`, then those of `make soak`.
	$(if $(ARGS),,$(BIN)/python -m pytest -n $(WORKERS) --through-asyncio $(SOAK_SECONDS) providers -k us8)
	$(if $(ARGS),,$(BIN)/python -m pytest -n $(WORKERS) --through-asyncio --soak $(SOAK_SECONDS) providers -k us8)

test-oldest: $(OLDEST)/.ready ## us8, the sinks and verify with the oldest allowed version of each dependency
	@# Old versions of others warn of what will change in theirs, and PySpark 4.0 leaves sockets to the garbage collector.
	$(OLDEST)/bin/python -m pytest -n $(WORKERS) -p no:cacheprovider -W ignore::DeprecationWarning \
		-W ignore::FutureWarning -W "ignore:unclosed <socket:ResourceWarning" $(ARGS) $(VENDORS)

test-tools: setup ## run the tests of tools/, and azure-cosmos' own on the emulator; the first run downloads them
	$(BIN)/python -m pytest -n $(WORKERS) $(TOOLS_SECONDS) $(ARGS) tools
	@# .ci/run leaves them out as long as no input differs from the digest that is written here.
	$(if $(ARGS),,$(BIN)/python tools/tested.py --write)

lint: setup ## ruff, mypy and import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup ## let ruff format the code and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

mutate: setup ## plant defects and count those that no test finds; ARGS="-j 3", ARGS=--list
	$(BIN)/python -m mutation $(ARGS)

explore: setup ## check the lineage in every small history; half an hour; ARGS="--depth 4", "--random 16 3600", "--level dynamo"
	$(BIN)/python -m tests.lineage $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m tests.lineage --level all)

demo: setup ## mirror 336,776 flights into a table; ROWS=20000 bounds it, FAST=1 writes at once
	@# ROWS and FAST reach it through the environment, where make puts what its command line sets.
	$(BIN)/python -m demo

bench: setup ## measure us beside doing it by hand; ARGS="--only NAME", ARGS=--record renews the page in docs/
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: setup ## measure us beside Debezium, drivers and SDKs; ARGS="--only NAME", ARGS=--record renews the charts
	$(BIN)/python -m benchmarks.peers $(ARGS)

docs: setup ## build the documentation into site/
	@# mkdocs-material announces MkDocs 2 in every build unless it is told not to.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

wheels: $(BUILDER)/.ready ## build a wheel of every distribution into dist/; needs neither .venv nor PySpark
	rm -rf dist
	$(BUILDER)/bin/python -m pip --disable-pip-version-check wheel -q --no-deps --no-build-isolation -w dist $(DISTRIBUTIONS)
	@ls dist

release-check: wheels ## dry run of a release: wheels, twine, a new environment with all of them, SBOM; two minutes
	rm -rf $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/tools
	$(PYTHON) -m venv --without-pip $(RELEASE)/installed
	@# Wheels from dist/ have no hashes, so the pins are given without theirs.
	sed -nE 's/^([a-z0-9][a-z0-9._-]*==[^ ]+( ;[^\]*)?).*/\1/p' requirements.txt > $(RELEASE)/pins.txt
	$(RELEASE)/tools/bin/python -m pip --disable-pip-version-check install -q --no-compile -c $(RELEASE)/pins.txt twine cyclonedx-bom
	$(RELEASE)/tools/bin/python -m twine check --strict dist/*.whl
	$(RELEASE)/tools/bin/python -m pip --disable-pip-version-check --python $(RELEASE)/installed install -q --no-compile -c $(RELEASE)/pins.txt \
		--find-links dist $$(cd dist && ls *.whl | sed -E 's/-.*//') 'multiclouddb[certify,cli,postgres]' 'multiclouddb-emulators[cosmos,spanner]'
	$(RELEASE)/tools/bin/python -m pip --disable-pip-version-check --python $(RELEASE)/installed check
	$(RELEASE)/installed/bin/python -I tools/smoke.py
	$(RELEASE)/tools/bin/cyclonedx-py environment --output-reproducible -o $(RELEASE)/multiclouddb.cdx.json \
		$(RELEASE)/installed/bin/python
	@ls dist $(RELEASE)/multiclouddb.cdx.json

# The build backend alone, with the versions and hashes of requirements.txt.
$(BUILDER)/.ready: requirements.txt
	rm -rf $(BUILDER)
	$(PYTHON) -m venv $(BUILDER)
	@awk '/^[a-z]/ { wanted = /^(hatchling|packaging|pathspec|pluggy|tomlkit|trove-classifiers)==/ } wanted' \
		requirements.txt > $(BUILDER)/requirements.txt
	$(BUILDER)/bin/python -m pip --disable-pip-version-check install -q --require-hashes -r $(BUILDER)/requirements.txt
	@touch $@

lock: ## renew the pins: requirements.txt of .venv, requirements-oldest.txt of test-oldest (needs uv)
	@command -v $(UV) >/dev/null || { echo "make lock needs uv: pip install uv, or make lock UV=/path/to/uv" >&2; exit 1; }
	$(UV) export -q --upgrade --format requirements.txt --no-emit-workspace --no-header --no-annotate \
		--all-packages --all-extras -o requirements.txt
	rm -f uv.lock
	$(PYTHON) tools/oldest.py | $(UV) pip compile -q --upgrade --python-version 3.11 --resolution lowest-direct \
		--generate-hashes --no-header --no-annotate - -o requirements-oldest.txt

clean: ## remove .venv and everything built
	rm -rf $(VENV) dist build site demo-output .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Two stamps: the pinned packages, which take a minute, and the distributions of this workspace, which take
# seconds. Editable distributions cannot be hashed, hence two pip commands.

$(VENV)/.requirements: requirements.txt
	@command -v $(PYTHON) >/dev/null || \
		{ echo "multiclouddb needs Python 3.11 or newer, and there is no $(PYTHON); try make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "multiclouddb needs Python 3.11 or newer, $(PYTHON) is $$($(PYTHON) -V 2>&1); try make PYTHON=python3.11" >&2; exit 1; }
	@echo "Installing pinned packages into $(VENV); the first time takes about a minute."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	$(PIP) install -q --require-hashes -r requirements.txt
	@touch $@

$(VENV)/.workspace: $(VENV)/.requirements $(PROJECTS)
	$(PIP) install -q --no-deps --no-build-isolation $(addprefix -e ,$(DISTRIBUTIONS) $(TOOLS))
	@$(PIP) check -q
	@touch $@

# The same with the oldest versions, for `make test-oldest`.
$(OLDEST)/.ready: requirements-oldest.txt $(PROJECTS)
	@command -v $(OLDEST_PYTHON) >/dev/null || \
		{ echo "make test-oldest needs the oldest supported Python; try make test-oldest OLDEST_PYTHON=/path/to/python3.11" >&2; exit 1; }
	rm -rf $(OLDEST)
	$(OLDEST_PYTHON) -m venv $(OLDEST)
	@# The file names every package. pip 23 would look for the newest version of what another requires with an extra.
	$(OLDEST)/bin/python -m pip --disable-pip-version-check install -q --no-deps --require-hashes -r requirements-oldest.txt
	$(OLDEST)/bin/python -m pip --disable-pip-version-check install -q --no-deps --no-build-isolation \
		$(addprefix -e ,$(DISTRIBUTIONS) $(TOOLS))
	@$(OLDEST)/bin/python -m pip --disable-pip-version-check check -q
	@touch $@
