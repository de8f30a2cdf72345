# Everything a person may run. `make help` lists it; CI runs some of the same targets.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
TESTS  ?= tests
# Without the tests that need other languages or Spark, and without those that WITHOUT names.
ALONE  := $(addprefix --ignore=,tests/clients tests/spark $(WITHOUT))
# RERUNS=1 gives a test that fails a second try; the summary names it. CI does so.
AGAIN  = $(if $(RERUNS),--reruns $(RERUNS))
SHELL  := /bin/bash
# Every process that a test starts, and every worker of pytest, would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
# The tests that compare a generated page with what it is made from.
GENERATED := tests/test_source_map.py tests/test_features_page.py tests/test_settings_page.py \
  tests/broker/test_protocol_docs.py tests/operator/test_operator_docs.py tests/docs/test_commands_page.py \
  tests/docs/test_metrics_page.py tests/docs/test_figures.py tests/docs/test_spark_rates.py tests/docs/test_tables_page.py tests/docs/test_limits_page.py \
  tests/docs/test_console_page.py

.DEFAULT_GOAL := help

.PHONY: help
help: ## List what can be run
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# The cluster takes the shell's place, so that a signal for `make` ends it. The compilation has a group of its own, which looks
# whether the cluster still runs.
.PHONY: run
run: $(VENV)/.run ## Start the cluster of examples/quickstart.yaml, play the order demo, stay up until Ctrl-C
	@mkdir -p build; \
	if $(BIN)/python broker/compile.py --current build/compiled; then \
	  echo "Compiled modules of build/compiled"; export PYTHONPATH="$(CURDIR)/build/compiled"; \
	elif type $${CC:-cc} >/dev/null 2>&1; then \
	  echo "Sources; meanwhile the hot modules are compiled for the next \`make run\` (minutes; build/compiled.log)"; \
	  set -m; ( set +m; nice -n 19 $(MAKE) -s compiled & \
	    while kill -0 $$$$ && kill -0 $$!; do sleep 1; done 2>/dev/null; kill 0 ) >build/compiled.log 2>&1 & set +m; \
	else \
	  echo "Sources, not compiled: there is no C compiler"; \
	fi; exec $(BIN)/orderlymq up -f examples/quickstart.yaml --demo

# What starts whole processes or a browser, or takes tens of seconds, waits most of the time: `make test-long` has it.
SLOW := long or cluster or chromium

# Four workers keep two CPUs busy. A module's tests stay together, because they share their cluster; the longest modules begin.
.PHONY: test
test: $(VENV)/.dev $(if $(filter tests,$(TESTS)),| .pytest_cache) ## Run the tests of this project alone that need no process beside them, JOBS (default 4) at a time, in four minutes
	@$(BIN)/python -m pytest $(TESTS) $(ALONE) -m "not ($(SLOW))" -n $(or $(JOBS),4) --dist loadscope --no-loadscope-reorder $(AGAIN)

# Before the first run: each worker would compile all tests. A module that cannot be read is reported by the run.
.pytest_cache: | $(VENV)/.dev
	@echo "Compiling the tests (once)"
	@ls -d tests/*/ | grep -vE '/(clients|spark|__pycache__)/' | \
	  xargs -P 2 -n 7 $(BIN)/python -m pytest --collect-only -qq -p no:xdist >/dev/null 2>&1 || true

.PHONY: test-long
test-long: $(VENV)/.dev ## Run the tests of this project alone that start processes or a browser, or take tens of seconds
	@$(BIN)/python -m pytest $(TESTS) $(ALONE) -m "$(SLOW)" -n $(or $(JOBS),4) --dist loadscope --no-loadscope-reorder $(AGAIN)

.PHONY: coverage
coverage: $(VENV)/.dev ## Run the tests of this project alone, one at a time, with a report of what they cover
	@$(BIN)/python -m pytest $(TESTS) $(ALONE) --cov --cov-report=term:skip-covered

.PHONY: test-clients
test-clients: $(VENV)/.dev ## Run the tests with RocketMQ's own clients: Java, mqadmin, Go, Node, C++, Rust; BRIEF=1 leaves out what is long (Rust is), older Java lines and `test-suite`
	@$(BIN)/python -m pytest tests/clients -n $(or $(JOBS),2) --dist loadfile --no-loadscope-reorder $(if $(BRIEF),--brief -m "not long") $(AGAIN)

.PHONY: test-suite
test-suite: $(VENV)/.dev ## Run RocketMQ's own integration tests and examples of every version against our brokers
	@$(BIN)/python -m pytest tests/clients/rocketmq/test_suite.py tests/clients/rocketmq/test_examples.py --whole-suite

.PHONY: test-spark
test-spark: $(VENV)/.dev $(VENV)/.s3 ## Run the tests of the Spark pipelines, also against an S3 server; SHORT=1 leaves out what takes minutes
	@$(BIN)/python -m pytest tests/spark -n $(or $(JOBS),2) --dist loadfile --no-loadscope-reorder $(if $(SHORT),-m "not long") $(AGAIN)

.PHONY: kill-spark
kill-spark: $(VENV)/.dev ## Kill Spark's drivers, executors and workers KILLS times (default 200) by SEED, check what they leave
	@$(BIN)/python -m tests.spark.faults.kills --kills $(or $(KILLS),200) --seed $(or $(SEED),1) $(ARGS)

.PHONY: spark-versions
spark-versions: $(VENV)/.dev ## Try each version of Spark in an environment of its own, write docs/evidence/spark-versions.md; ARGS="--version 4.0.5" only prints
	@$(BIN)/python -m tests.spark.versions $(ARGS)

.PHONY: e2e
e2e: $(VENV)/.dev ## Run all scenarios on Kubernetes: KUBECONFIG, or a kind cluster that is made; see e2e/README.md
	@$(BIN)/python -m pytest e2e -p no:cacheprovider

.PHONY: e2e-ci
e2e-ci: $(VENV)/.dev ## Run the scenarios that CI runs, too
	@$(BIN)/python -m pytest e2e -p no:cacheprovider -m ci

# CI has the generated pages compared by `make test`.
.PHONY: lint
lint: $(VENV)/.dev ## Check format, style, types, import contracts and generated files
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m orderlymq_operator.resources.crd --check
	@$(if $(CI),true,$(BIN)/python -m pytest -q $(GENERATED))

.PHONY: sim
sim: $(VENV)/.dev ## Simulate SEEDS groups (default 600) with faults, from SEED on; LANES=1 only those with key lanes; after `make compiled` faster with COMPILED=1
	@$(if $(COMPILED),PYTHONPATH="$(CURDIR)/build/compiled") $(BIN)/python -m tests.sim --seed $(or $(SEED),0) --seeds $(or $(SEEDS),600) $(if $(LANES),--lanes)

.PHONY: mutants
mutants: $(VENV)/.dev ## Change the core in small ways, report which tests notice; PATHS= modules, SHARE= of them (1), SEEDS= to try too (0), ARGS=
	@$(BIN)/python -c 'import mutmut' 2>/dev/null || $(BIN)/pip -q --disable-pip-version-check install mutmut==3.8.1
	@$(BIN)/python -m tests.mutants $(PATHS) --share $(or $(SHARE),1) --seeds $(or $(SEEDS),0) --write $(ARGS)

.PHONY: hostile
hostile: $(VENV)/.dev ## Send what no client would, by SEED, for MINUTES (default 4) or REQUESTS=; CASE= repeats one; see docs/evidence/hostile.md
	@$(BIN)/python -m tests.hostile --seed $(or $(SEED),1) $(if $(REQUESTS),--requests $(REQUESTS),$(if $(CASE),,--minutes $(or $(MINUTES),4))) \
	  $(if $(CASE),--case $(CASE)) $(if $(CASES),--cases $(CASES)) $(if $(GUARDED),--guarded) $(ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.dev ## Fuzz every decoder, guided by coverage, SECONDS in all (default 60); see docs/evidence/hostile.md
	@$(BIN)/pip -q --disable-pip-version-check install atheris==2.3.0
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1) $(ARGS)

.PHONY: nemesis
nemesis: $(VENV)/.dev ## Break real processes for MINUTES (default 4) by the schedule of SEED; see docs/evidence/nemesis/README.md
	@$(BIN)/python -m tests.nemesis --minutes $(or $(MINUTES),4) --seed $(or $(SEED),1) --replicas $(or $(REPLICAS),0)

.PHONY: handover
handover: $(VENV)/.dev ## Measure how long clients wait when leadership or a queue changes hands, ROUNDS times (default 20)
	@$(BIN)/python -m tests.nemesis.handover --rounds $(or $(ROUNDS),20)

.PHONY: compiled
compiled: $(VENV)/.compile ## Make a copy in build/compiled whose hot modules are compiled, for `make run`; needs a C compiler, takes two minutes
	@$(BIN)/python broker/compile.py --current build/compiled || { \
	  echo "Compiling into build/compiled, about two minutes (again only when sources change)"; \
	  rm -rf build/compiled && sources=$$($(BIN)/python broker/compile.py --digest) && \
	  $(BIN)/pip -q --disable-pip-version-check install --no-deps --target build/compiled . && \
	  $(BIN)/python broker/compile.py --of "$$sources" build/compiled; }

# Where the modules that are compiled have their tests.
COMPILED_ROOMS := tests/raft tests/protocol/frame tests/protocol/message tests/runtime/remoting tests/broker/core tests/broker/processors/fetch \
  tests/broker/processors/schedule tests/broker/processors/send tests/broker/replication tests/broker/state tests/broker/store

.PHONY: test-compiled
test-compiled: $(VENV)/.dev compiled ## Run the tests of protocol, raft and broker on the compiled copy; SHORT=1 those of compiled modules, with fewer seeds and examples
	@PYTHONPATH="$(CURDIR)/build/compiled" $(if $(SHORT),ORDERLYMQ_SEEDS=8) $(BIN)/python -m tests.compiled
	@PYTHONPATH="$(CURDIR)/build/compiled" $(if $(SHORT),ORDERLYMQ_EXAMPLES=25) $(BIN)/python -m pytest -q \
	  $(if $(SHORT),$(COMPILED_ROOMS),tests/raft tests/protocol tests/runtime tests/broker) \
	  -m "not interpreted" -n $(or $(JOBS),2) --dist loadscope $(AGAIN)

.PHONY: bench
bench: $(VENV)/.dev ## Compare with RocketMQ, NATS, RabbitMQ and Kafka, also by key, write docs/explanation/benchmarks.md; QUICK=1 for minutes, ARGS= for more of the first
	@$(if $(QUICK),:,$(MAKE) -s compiled) || echo "No compiled copy here: its lines are left out"
	@$(BIN)/python -m bench.compare $(if $(QUICK),--quick,--write docs/explanation/benchmarks.md) $(ARGS)
	@$(MAKE) -s bench-lanes bench-by-key QUICK=$(QUICK) ARGS=

.PHONY: profile
profile: $(VENV)/.dev ## Draw flame graphs of leader, follower and consumer under each load into build/profiles
	@$(BIN)/py-spy --version >/dev/null 2>&1 || $(BIN)/pip -q --disable-pip-version-check install py-spy==0.4.3
	@$(BIN)/python -m bench.profiles $(ARGS)

.PHONY: bench-lanes
bench-lanes: $(VENV)/.dev compiled ## Measure what key lanes promise, into docs/explanation/benchmarks.md; QUICK=1 only prints
	@PYTHONPATH="$(CURDIR)/build/compiled" $(BIN)/python -m bench.lanes $(if $(QUICK),--quick,--write docs/explanation/benchmarks.md) $(ARGS)

.PHONY: bench-by-key
bench-by-key: $(VENV)/.dev compiled ## Compare key lanes with RocketMQ, Kafka's parallel consumer and NATS, into docs/explanation/benchmarks.md; QUICK=1 only prints
	@PYTHONPATH="$(CURDIR)/build/compiled" $(BIN)/python -m bench.bykey $(if $(QUICK),--quick,--write docs/explanation/benchmarks.md) $(ARGS)

.PHONY: bench-tls
bench-tls: $(VENV)/.dev ## Measure what TLS between replicas costs, into docs/explanation/benchmarks.md; QUICK=1 only prints
	@$(BIN)/python -m bench.tlsprice $(if $(QUICK),--quick,--write docs/explanation/benchmarks.md) $(ARGS)

.PHONY: bench-console
bench-console: $(VENV)/.dev ## Measure what the console costs a leader and how long its pages take, into docs/explanation/benchmarks.md; QUICK=1 only prints
	@$(BIN)/python -m bench.console $(if $(QUICK),--topics 1000 --groups 500 --seconds 5,--write docs/explanation/benchmarks.md) $(ARGS)

.PHONY: bench-growth
bench-growth: $(VENV)/.dev compiled ## Measure what a message costs as one thing grows by decades, into docs/explanation/growth.md; QUICK=1 only prints
	@PYTHONPATH="$(CURDIR)/build/compiled" $(BIN)/python -m bench.growth $(if $(QUICK),--quick,--write docs/explanation/growth.md) $(ARGS)

.PHONY: bench-pythons
bench-pythons: $(VENV)/.dev ## Measure sends under each Python of this machine, from the sources and compiled, into docs/explanation/benchmarks.md; QUICK=1 only prints
	@$(BIN)/python -m bench.pythons $(if $(QUICK),,--write docs/explanation/benchmarks.md) $(ARGS)

.PHONY: bench-groups
bench-groups: $(VENV)/.dev compiled ## Measure the same load on one, two and four groups, and model larger clusters, into docs/explanation/benchmarks.md; QUICK=1 only prints
	@PYTHONPATH="$(CURDIR)/build/compiled" $(BIN)/python -m bench.groups $(if $(QUICK),--quick,--write docs/explanation/benchmarks.md) $(ARGS)

.PHONY: bench-tail
bench-tail: $(VENV)/.dev compiled ## Trace the slowest of 10,000 sends of one sender, into docs/explanation/benchmarks.md; QUICK=1 only prints 1,000
	@PYTHONPATH="$(CURDIR)/build/compiled" $(BIN)/python -m bench.tail $(if $(QUICK),--sends 1000,--write docs/explanation/benchmarks.md) $(ARGS)

.PHONY: bench-operator
bench-operator: $(VENV)/.dev ## Measure the operator at an API server alone, with 10,000 Topics and pods; needs etcd and kube-apiserver on the PATH
	@$(BIN)/python -m bench.apiload $(ARGS)

.PHONY: bench-backup
bench-backup: $(VENV)/.dev compiled ## Measure what a backup costs a cluster that serves, and a restore, into docs/explanation/benchmarks.md; QUICK=1 only prints
	@PYTHONPATH="$(CURDIR)/build/compiled" $(BIN)/python -m bench.backup $(if $(QUICK),--quick,--write docs/explanation/benchmarks.md) $(ARGS)

.PHONY: bench-spark
bench-spark: $(VENV)/.dev ## Measure topic to DataFrame, to Parquet, audit and compaction, into docs/explanation/benchmarks.md; QUICK=1 only prints
	@$(BIN)/python -m bench.spark $(if $(QUICK),--quick,--write docs/explanation/benchmarks.md) $(ARGS)

.PHONY: bench-spark-memory
bench-spark-memory: $(VENV)/.dev ## Read 10 GiB with Spark workers of 1 GiB, report what each process holds, in docs/explanation/benchmarks.md; QUICK=1 prints 0.25 GiB
	@$(BIN)/python -m bench.sparkmemory $(if $(QUICK),--quick,--write docs/explanation/benchmarks.md) $(ARGS)

.PHONY: bench-spark-audit
bench-spark-audit: $(VENV)/.dev ## Audit an archive of 100 million messages with planted defects, into docs/explanation/benchmarks.md; QUICK=1 prints 2 million
	@$(BIN)/python -m bench.sparkaudit $(if $(QUICK),--quick,--write docs/explanation/benchmarks.md) $(ARGS)

.PHONY: crds
crds: $(VENV)/.dev ## Generate the CRDs of the chart from the manifest models; crds/ links to them
	@$(BIN)/python -m orderlymq_operator.resources.crd

.PHONY: pages
pages: $(VENV)/.dev ## Write the generated pages of docs/ again
	@for page in $(GENERATED); do page=$${page%.py}; $(BIN)/python -m $${page//\//.}; done

.PHONY: docs
docs: $(VENV)/.docs ## Build the site of docs/ in build/site; every warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs --quiet build --strict

.PHONY: docs-serve
docs-serve: $(VENV)/.docs ## Serve the site of docs/ on 127.0.0.1:8000 and follow changes
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

.PHONY: pictures
pictures: $(VENV)/.dev ## Draw the architecture, record the demo, open the console for docs/pictures; needs Chromium and the quick start's ports
	@$(BIN)/python docs/pictures/architecture.py
	@$(BIN)/python docs/pictures/demo.py
	@$(BIN)/python docs/pictures/console.py

.PHONY: lock
lock: $(VENV)/.dev ## Pin the newest allowed dependencies in requirements/*.lock, each one alike in all of them
	@$(BIN)/pip -q install uv
	@before=; for extra in dev run compile spark kubernetes docs; do \
	  $(BIN)/uv pip compile -q --upgrade --generate-hashes --no-strip-extras --universal --python-version 3.11 --no-header --no-annotate \
	    --no-emit-index-url --no-emit-find-links $$([ $$extra = run ] || echo --extra $$extra) $$([ $$extra != spark ] || echo --extra iceberg) $$before \
	    pyproject.toml -o requirements/$$extra.lock || exit 1; \
	  before="$$before --constraint requirements/$$extra.lock"; done

.PHONY: dist
dist: $(VENV)/.dev ## Build what is delivered into dist/: five wheels, the chart, bills of materials, checksums; COMPILED=1 adds the compiled server
	@$(BIN)/python -c 'import cyclonedx_py' 2>/dev/null || $(BIN)/pip -q --disable-pip-version-check install cyclonedx-bom==7.5.0
	@$(BIN)/python -m release.dist dist $(if $(COMPILED),--compiled)

.PHONY: test-dist
test-dist: dist ## Install each wheel of dist/ in an empty environment and use it; downloads Spark, too
	@$(BIN)/python -m release.trial dist

.PHONY: bundle
bundle: $(VENV)/.dev ## Write the bundle for the Operator Lifecycle Manager into build/bundle; needs Helm
	@$(BIN)/python -m release.bundle build/bundle

.PHONY: image
image: ## Build the image orderlymq:TAG (default dev), whose label names the commit; needs Docker
	@docker build --build-arg REVISION=$$(git rev-parse HEAD) -t orderlymq:$(or $(TAG),dev) .

.PHONY: release-check
release-check: $(VENV)/.dev ## List what is missing for a release: versions, base image, changelog, locks, generated files, a clean tree
	@$(BIN)/python -m release.check $(GENERATED)

.PHONY: clean
clean: ## Remove the environment, caches and the local cluster's data
	rm -rf $(VENV) .orderlymq .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage build dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "OrderlyMQ needs Python 3.11 or newer. On Debian: apt-get install python3-venv. If you have one by another name: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "Making a Python environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "Python's venv module is missing; on Debian: apt-get install python3-venv"; exit 1; }

$(VENV)/.run: requirements/run.lock pyproject.toml | $(VENV)/bin/python
	@echo "Installing what the cluster needs (once; requirements/run.lock)"
	@$(BIN)/pip -q --disable-pip-version-check install -r requirements/run.lock
	@$(BIN)/pip -q --disable-pip-version-check install --no-deps -e .
	@touch $@

$(VENV)/.compile: requirements/compile.lock | $(VENV)/.run
	@echo "Installing the compiler of typed modules (once; requirements/compile.lock)"
	@$(BIN)/pip -q --disable-pip-version-check install -r requirements/compile.lock
	@touch $@

$(VENV)/.docs: requirements/docs.lock | $(VENV)/.run
	@echo "Installing what the site of docs/ needs (once; requirements/docs.lock)"
	@$(BIN)/pip -q --disable-pip-version-check install -r requirements/docs.lock
	@touch $@

# With Spark, whose tests are among the tests: 500 MB, once. They are skipped when there is no Java.
$(VENV)/.dev: requirements/dev.lock requirements/spark.lock requirements/kubernetes.lock pyproject.toml | $(VENV)/bin/python
	@echo "Installing what the tests need (once; requirements/{dev,spark,kubernetes}.lock)"
	@$(BIN)/pip -q --disable-pip-version-check install -r requirements/dev.lock -r requirements/spark.lock \
	  -r requirements/kubernetes.lock
	@$(BIN)/pip -q --disable-pip-version-check install --no-deps -e .
	@touch $@ $(VENV)/.run

# A server of S3 for tests, apart from everything else: its libraries want older versions than ours.
$(VENV)/.s3: | $(VENV)/bin/python
	@echo "Installing the S3 server of the tests (once)"
	@$(BIN)/python -m venv $(VENV)/s3
	@$(VENV)/s3/bin/pip -q --disable-pip-version-check install 'moto[s3,server]==5.2.5'
	@touch $@
