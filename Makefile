# slurm-asrpt: make setup | demo | test | test-coverage | test-random | fuzz | test-compat | test-faults | test-profile | lint | benchmarks | benchmarks-rules | deb | test-deb | rpm | test-rpm | reproduction | man | screenshots | figures | clean
# Needs make, python3 and, for missing packages, root.

PYTHON ?= /usr/bin/python3
VENV := .venv
RPM_PYTHON ?= python3.11
BIN := $(VENV)/bin

PACKAGES := python3-venv slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge lua5.1 lua5.3 lua5.4 faketime
TEST_PACKAGES := slurmdbd slurm-wlm-mysql-plugin mariadb-server chromium chromium-driver prometheus mandoc zsh fish

# By content, not by date, so that switching branches costs nothing; by place, because a venv cannot be moved.
STAMP := $(VENV)/setup-$(shell (pwd; $(PYTHON) -V; cat pyproject.toml) | sha256sum | cut -c1-16)

# Tests start Python some thousand times: without files of bytecode, each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup packages test-packages demo test test-units test-units-1 test-units-2 test-properties test-coverage test-e2e-1 test-e2e-2 test-e2e-3 test-random fuzz test-compat test-faults test-requests test-queues test-profile test-integrations lint benchmarks benchmarks-rules deb test-deb rpm test-rpm reproduction man screenshots figures clean

help: ## Show this
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

setup: $(STAMP) ## Install missing Debian packages and make .venv (quick when nothing is missing)

packages:
	@.ci/packages $(PACKAGES)

test-packages: packages
	@.ci/packages $(TEST_PACKAGES)

$(STAMP): | packages
	@echo "making $(VENV)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	@$(BIN)/python -m compileall -q -j 0 -x '/tests?/' $(VENV)/lib >/dev/null || true  # some packages have files for other Pythons
	@rm -f $(VENV)/setup-*
	@touch $@

demo: setup ## Play a day of a GPU cluster on real Slurms on this machine, plain and with asrptd: five minutes
	@$(BIN)/python -m slurm_asrpt.lab.demo

test: setup test-packages ## Lint and all tests, end-to-end ones on a real Slurm included: about 20 minutes on 2 cores
	@echo "lint, and tests with and without a real Slurm side by side; each is shown when it has ended"
	@$(BIN)/python -m compileall -q slurm_asrpt cli
	@.ci/in-memory $(MAKE) --no-print-directory --jobs=7 --output-sync=target --keep-going \
		test-e2e-1 test-e2e-2 test-e2e-3 test-units-1 test-units-2 test-properties lint

test-units: test-units-1 test-units-2 ## Tests of one package each, without Slurm, in two parts; clusters beside them get the CPUs first

test-units-1: setup test-packages
	nice -n 10 $(BIN)/pytest -m 'not e2e and not timing' tests/unit/[a-h]*

test-units-2: setup test-packages
	nice -n 10 $(BIN)/pytest -m 'not e2e and not timing' tests/unit/[!a-h]*

test-properties: setup test-packages ## The others without Slurm: property tests, integration tests, simulated faults
	nice -n 10 $(BIN)/pytest -m 'not e2e and not timing' --ignore=tests/unit

COVERAGE ?= 90
test-coverage: setup test-packages ## Both with the floor of their coverage (COVERAGE=90 percent), in twice the time
	$(BIN)/pytest -m 'not e2e and not timing' --cov=slurm_asrpt --cov=slurm_asrpt_cli --cov-report= --cov-fail-under=$(COVERAGE)

test-e2e-1: setup test-packages ## Those on a real Slurm, which wait most of the time, in three parts
	.ci/twice $(BIN)/pytest -m e2e tests/e2e/test_[a-fv-z]*.py

test-e2e-2: setup test-packages
	ASRPT_TEST_PORT=18600 .ci/twice $(BIN)/pytest -m e2e tests/e2e/test_[g-l]*.py tests/faults

test-e2e-3: setup test-packages
	ASRPT_TEST_PORT=19700 .ci/twice $(BIN)/pytest -m e2e tests/e2e/test_[m-u]*.py

test-random: setup ## The property tests with other examples in each run
	$(BIN)/pytest --hypothesis-profile=random tests/property

MINUTES ?= 10
FUZZED ?= tests/property
fuzz: setup ## The same again and again until MINUTES=10 are over, or one fails: the readers alone with FUZZED=tests/property/test_fuzz_readers.py
	@end=$$(($$(date +%s) + 60 * $(MINUTES))); while [ $$(date +%s) -lt $$end ]; do \
		$(BIN)/pytest -q -x --hypothesis-profile=random $(FUZZED) || exit 1; done

test-compat: setup test-packages ## End-to-end tests on Debian's other Slurms too, into docs/compatibility.md: about 75 minutes
	@.ci/packages debootstrap
	$(BIN)/python -m tests.trials.compat

SEED ?= 1
FAULTS ?= 3
COUNTS ?= build/faults.json
test-faults: setup test-packages ## Faults under load on a real Slurm, the counts added to build (SEED=1 FAULTS=3: times of each; ONLY=sigkill,leases): an hour
	@mkdir -p build
	$(BIN)/python -m tests.faults --seed $(SEED) --faults $(FAULTS) --json $(COUNTS) $(if $(ONLY),--only $(ONLY))

TORCH ?= torch
test-profile: setup ## Measuring models on the CPU: puts torch into .venv, 0.7 GB (TORCH=torch==2.13.0+cpu: another torch)
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install --quiet '$(TORCH)'
	$(BIN)/pytest tests/integration/test_profile*.py

test-integrations: ## The callbacks in real trainers on the CPU (a venv of 1.6 GB; TORCH=torch==2.13.0+cpu: another torch)
	@$(PYTHON) -m venv build/integrations
	build/integrations/bin/python -m pip install --quiet '$(TORCH)' '.[lightning,transformers]' pytest hypothesis
	build/integrations/bin/python -m pytest tests/integration

lint: setup ## Style, types and the architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@mkdir -p build/mypy && ln -sfn ../../cli build/mypy/slurm_asrpt_cli
	MYPYPATH=build/mypy $(BIN)/mypy -p slurm_asrpt_cli -p papers -p benchmarks -p tests.faults
	$(BIN)/lint-imports

benchmarks: setup ## The figures of benchmarks/results: about two hours on 2 quiet cores, JSON into build/benchmarks
	@mkdir -p build/benchmarks
	$(BIN)/python -m benchmarks.heavy_edge --json > build/benchmarks/heavy_edge.json
	$(BIN)/python -m benchmarks.forecast --json > build/benchmarks/forecast.json
	$(BIN)/python -m benchmarks.hook --json > build/benchmarks/hook.json
	$(BIN)/python -m benchmarks.simulate --jobs 150000 --policy asrpt --runs 5 --json > build/benchmarks/simulate.json
	$(BIN)/python -m benchmarks.policies --json > build/benchmarks/policies.json
	$(BIN)/python -m benchmarks.reallogs --quick --json > build/benchmarks/reallogs.json
	$(BIN)/python -m benchmarks.hetero --json > build/benchmarks/hetero.json
	$(BIN)/python -m benchmarks.sjf_bco --json > build/benchmarks/sjf_bco.json
	$(BIN)/python -m benchmarks.contention --seeds 3 --json > build/benchmarks/contention.json
	$(BIN)/python -m benchmarks.retrain --json > build/benchmarks/retrain.json
	$(BIN)/python -m benchmarks.coverage --retrain 6 --json > build/benchmarks/coverage.json
	$(BIN)/python -m benchmarks.cycle --pending 2300 --json > build/benchmarks/cycle-2300.json
	$(BIN)/python -m benchmarks.cycle --pending 10000 --json > build/benchmarks/cycle-10000.json
	$(BIN)/python -m benchmarks.cycle --interval 0.01 --cycles 1000 --json > build/benchmarks/cycle-memory.json
	$(BIN)/python -m benchmarks.latency --interval 30 --json > build/benchmarks/latency.json
	$(BIN)/python -m benchmarks.status --json > build/benchmarks/status.json
	$(BIN)/python -m benchmarks.audit --pending 10000 --json > build/benchmarks/audit.json
	$(BIN)/python -m benchmarks.replay --json > build/benchmarks/replay.json
	$(BIN)/python -m benchmarks.predictors --json --seeds 8 --loads 0.8 1.0 --jobs 3000 > build/benchmarks/predictors.json

SCALE ?= 1
benchmarks-rules: setup test-packages ## A site's rules on a real Slurm, plain beside asrptd: two hours, JSON into build/benchmarks (SCALE=0.25 ONLY=nice,tiers)
	@mkdir -p build/benchmarks
	$(BIN)/python -m benchmarks.rules --scale $(SCALE) $(if $(ONLY),--only $(ONLY)) --json > build/benchmarks/rules.json

deb: ## Debian packages of the last commit into build/deb: slurm-asrpt and slurm-asrpt-controller
	@.ci/packages debhelper dh-virtualenv python3-venv dpkg-dev git
	@rm -rf build/deb && mkdir -p build/deb/source
	git archive HEAD | tar -x -C build/deb/source
	cd build/deb/source && dpkg-buildpackage --no-sign --build=binary
	@ls -l build/deb/*.deb

rpm: ## RPM packages of the last commit into build/rpm, with RPM_PYTHON=python3.11 (where it will run: of the same version)
	@command -v rpmbuild >/dev/null || .ci/packages rpm python3-venv git
	@rm -rf build/rpm && mkdir -p build/rpm/SOURCES
	@version=$$(sed -n 's/^Version: //p' rpm/slurm-asrpt.spec); \
	    git archive --prefix=slurm-asrpt-$$version/ -o build/rpm/SOURCES/slurm-asrpt-$$version.tar.gz HEAD
	rpmbuild -bb --quiet $(if $(shell command -v dnf),,--nodeps) --define '_topdir $(CURDIR)/build/rpm' --define 'python $(RPM_PYTHON)' rpm/slurm-asrpt.spec
	@ls -l build/rpm/RPMS/*/*.rpm

test-deb: setup deb ## Those packages installed, upgraded, removed and purged in a bare Debian 12
	@.ci/packages debootstrap
	$(BIN)/python -m tests.trials.packages build/deb/*.deb

test-rpm: setup rpm ## Those installed, upgraded and removed by rpm in a bare Debian 12: not yet tried on a Red Hat
	@.ci/packages debootstrap
	$(BIN)/python -m tests.trials.packages build/rpm/RPMS/*/*.rpm

reproduction: setup ## Run the papers' simulations again, into docs/reproduction.md and .json: about half an hour; resumes where it was interrupted
	$(BIN)/python -m papers all --keep build/reproduction -o docs/reproduction.md

man: setup ## Write the manuals, completion, etc/asrpt.toml, docs/settings.md and docs/status.schema.json, and check them
	$(BIN)/python -m slurm_asrpt.config.reference
	$(BIN)/python -m slurm_asrpt.status.schema
	$(BIN)/python -m slurm_asrpt_cli._app.mandoc
	$(BIN)/python -m slurm_asrpt_cli._app.completion
	$(BIN)/pytest -q tests/unit/docs/test_config_doc.py tests/unit/cli/test_mandoc.py tests/unit/docs/test_docs.py

screenshots: setup test-packages ## Draw docs/img: asrpt-status on a terminal of 80x24, pages in a browser
	$(BIN)/python -m tests.trials.screenshots

SITE ?= plain
test-requests: setup test-packages ## Random requests on a real Slurm: each that it starts must start under asrptd (SEED=1 SITE=plain, defaults, threads or types)
	$(BIN)/python -m tests.trials.requests --seed $(SEED) --site $(SITE)

test-queues: setup test-packages ## Random queues on two real Slurms, plain and under asrptd (SEED=1 SITE=accounts,preempt; SITE= draws the site)
	$(BIN)/python -m tests.trials.queues --seed $(SEED) --site "$(SITE)"

mutations: setup ## Change core in small ways that a test should notice; PARTS=timing EVERY=5 for a part of them (docs/mutations.md)
	$(BIN)/python -m tests.trials.mutations $(PARTS) --every $(or $(EVERY),1)

figures: setup ## Draw the pictures of docs/how-it-decides.md
	$(BIN)/python -m tests.trials.figures

clean: ## Remove .venv and all that was built
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
