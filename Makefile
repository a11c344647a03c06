# `make demo` runs a real job, `make test` runs the tests. Both first install everything that they need.
# They run the sources uncompiled; `make compiled` compiles the modules that are compiled in wheels.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
export PYTHON
# With it, each process that the tests start would compile its modules again.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.installed
COMPILED_STAMP := $(VENV)/.compiled
RUN := $(VENV)/bin
PIP := $(RUN)/pip --quiet --disable-pip-version-check
# By a path: the other way of setuptools makes each start of Python import 25 ms of modules.
EDITABLE := --config-settings editable_mode=compat --editable
C_OF_LAUNCH := $(wildcard ciel/launch/*.[ch])
C_OF_ARROW := ciel/arrow/store_pool.cpp ciel/arrow/holding.c executors/sdk/c/ciel_table.c executors/sdk/c/ciel_table.h
C_OF_MEMORY := $(wildcard ciel/memory/*.[ch] ciel/memory/server/*.[ch])
LOADERS := executors/sdk/c/cso.c executors/sdk/c/sw_task.h $(wildcard executors/sdk/c/shmdc*) \
	$(shell find executors/sdk/java/src -name '*.java')
COMPILED := $(shell find ciel/core ciel/wire ciel/master/state ciel/state/server ciel/worker/state -name '*.py') \
	$(shell sed -n 's/^    "\(ciel.*\.py\)",$$/\1/p' setup.py)
C_OF_SCC := $(wildcard scc/include/*.h scc/src/*.[ch] scc/tools/*.[ch] scc/fuse/*.[ch])

TOOLS := .venv-tools
.PHONY: tools check-tools
.PHONY: deps dev compiled demo test test-all test-near map requirements sim sim-volumes sim-mutants test-under-load check check-deep check-stores check-two-kernels check-swap check-memory check-kv check-heap check-reach bench appendix arrays check-fuse release docs docs-links clean format

# System packages are installed only on request, or for CI, where a missing one would be a skipped test.
deps:
	@.ci/packages install

ifeq ($(CIEL_CI),1)
$(RUNTIME): | deps
endif
$(RUNTIME): pyproject.toml setup.py $(C_OF_LAUNCH) $(C_OF_ARROW) $(C_OF_MEMORY) $(LOADERS) scc/build_ffi.py $(C_OF_SCC)
	@.ci/packages report
	@echo "ciel: installing into $(VENV) (its dependencies, and what is in C)"
	@$(PYTHON) -m venv $(VENV)
	@find ciel executors -name '*.so' -delete  # of modules that are not compiled any more
	@CIEL_COMPILED=0 $(PIP) install --no-compile $(EDITABLE) .
	@for tool in scc/bin/*; do [ -x "$$tool" ] && ln -sf "../../$$tool" $(RUN)/; done; true
	@touch $(RUNTIME)
	@echo "ciel: installed: $(RUN)/ciel --help"

# The package is already installed, so this only adds the dependencies for its development. Compiling all their modules
# would take a minute; Python compiles those that are imported.
$(STAMP): $(RUNTIME)
	@echo "ciel: installing what the tests and checks need"
	@$(PIP) install --no-compile 'ciel[dev]'
	@touch $(STAMP)

$(COMPILED_STAMP): $(STAMP) $(COMPILED)
	@echo "ciel: compiling with mypyc: some minutes"
	@CIEL_COMPILED=1 $(PIP) install --no-deps $(EDITABLE) .
	@touch $(COMPILED_STAMP)

dev: $(STAMP)

compiled: $(COMPILED_STAMP)

demo: $(RUNTIME)
	@$(RUN)/python examples/search.py

test: dev
	@$(RUN)/pytest -n 3 --dist loadfile -m "not slow"

test-all: dev
	@$(RUN)/pytest -n 3 --dist loadfile

# The tests near a file, without clusters: `make test-near FILE=ciel/core/retries.py`.
test-near: dev
	@$(PYTHON) .ci/near $(FILE)

# Every module with the first sentence of its docstring; `make map IN=ciel/worker`: those of one package.
map:
	@$(PYTHON) .ci/map $(IN)

# Each requirement of docs/requirements.md with its code, its tests, and whether it is met.
requirements:
	@$(PYTHON) tests/requirements.py

# Seeds of simulated clusters whose master crashes, too: `make sim SEEDS=10000`, or `SEEDS=17-17 SCENARIO=kills`.
SEEDS ?= 1000
SCENARIO ?= crashes
sim: dev
	@$(RUN)/python -m ciel.testing.simulator --scenario $(SCENARIO) --seeds $(if $(findstring -,$(SEEDS)),,1-)$(SEEDS)

# Seeds of simulated memory servers, and of their owner: `make sim-volumes SEEDS=20000`.
sim-volumes: dev
	@PYTHONPATH=tests/lib $(RUN)/python -m ciel_tests.memory $(if $(findstring -,$(SEEDS)),,1-)$(SEEDS)

# Plants each mutant of tests/sim/mutants.toml: the simulator has to find it within 2,000 seeds.
sim-mutants: dev
	@SEEDS=2000 .ci/sim-mutants $(ONLY)

test-under-load: dev
	@.ci/under-load

# The second run of mypy sees what the compiler of wheels sees, which has none of our dependencies.
check: dev
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy
	$(RUN)/mypy --config-file= --ignore-missing-imports --no-site-packages $(COMPILED)
	$(RUN)/lint-imports --no-cache
	$(RUN)/python tests/requirements.py --check
	.ci/analyze-c
	.ci/history
	$(RUN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

bench: compiled
	@ONLY="$(ONLY)" RECORD="$(RECORD)" $(RUN)/python -m benchmarks

# The scripts of the dissertation's appendices A, B and C in full size: 5 GB of memory and disk, some minutes. Point 7 of
# appendix D is `make bench ONLY=combinations`, and section 4.4 `make bench ONLY=large_loads`.
appendix: dev
	@CIEL_APPENDIX=full $(RUN)/pytest -v tests/scc/test_appendix.py

# Count the copies of an array of 1 GiB that one task produces and four read.
arrays: dev
	@CIEL_LONG=1 $(RUN)/pytest -q -s tests/integration/python/test_arrays.py

# Check models of protocols with spin, and run tests that take too long for `make test`; many minutes.
check-deep: dev
	.ci/check-deep
	.ci/check-deep-shmfs
	CIEL_LONG=1 $(RUN)/pytest -q tests/scc/test_mpb.py tests/scc/test_store.py
	$(RUN)/python scc/tests/mutants.py scc/src/mpb.c scc/src/mpb_pieces.c scc/src/rcce.c \
	    --tests tests/scc/test_mpb.py -k strict
	$(RUN)/python scc/tests/mutants.py scc/src/ring.c --tests tests/scc/test_ring.py

# Run all tests that start clusters, including the examples, with each of the stores in memory; some minutes.
check-stores: dev
	CIEL_STORE=shm $(RUN)/pytest -q tests/integration
	CIEL_STORE=scc:capacity=1GiB $(RUN)/pytest -q tests/integration
	CIEL_STORE=shm:capacity=64MiB,spill=remote $(RUN)/pytest -q tests/integration \
		--ignore-glob='*/test_memory*.py' --ignore-glob='*/test_spill_remote.py'

# Two virtual machines share an image of shmfs; some minutes. Needs Debian's qemu-system-x86 and busybox-static.
check-two-kernels: dev
	@$(RUN)/python scc/tests/two_kernels.py

# A virtual machine swaps to the memory of two servers, and to a modelled disk; half an hour. Needs Debian's packages
# nbdkit, nbdkit-plugin-dev, qemu-system-x86 and busybox-static.
check-swap: dev
	@$(RUN)/python tests/memory/check_swap.py

# Memory servers are killed, leave, and get hostile requests and frames; three minutes. `make check-memory ONLY=kills`.
# Needs Debian's packages nbdkit, nbdkit-plugin-dev, libnbd-bin, python3-libnbd, qemu-utils, fio and e2fsprogs.
check-memory: dev
	@$(RUN)/python tests/memory/check_memory.py $(ONLY)

# Workers from a real Slurm and over a real sshd on this computer, workers that end at time limits, and what else reaches
# other systems; some minutes.
# Needs Debian's packages slurm-wlm, munge and openssh-server, and root for Slurm; `make check-reach ONLY=ssh`.
check-reach: dev tools
	@$(RUN)/pytest -m slow tests/reach/$(ONLY)

# `ciel-kv` is killed ten thousand times, 1,000 histories are checked, and it gets a million mutated frames; half an hour.
# `make check-kv ONLY=kills`.
check-kv: dev
	@$(RUN)/python tests/state/check_kv.py $(ONLY)

# Compiles twenty programs, and the interpreter of Lua, with `ciel-cc`, and compares what they print; a quarter of an hour.
# Needs clang and LLVM 16 or 19 with headers, liblmdb-dev, and apt-get.
check-heap: dev
	$(RUN)/pytest -q tests/heap
	@$(RUN)/python tests/heap/check_lua.py

# The tools that ciel works in, in an environment of their own, which also sees this checkout; some minutes.
TOOLS_STAMP := $(TOOLS)/.installed
$(TOOLS_STAMP): $(STAMP) tests/reach/tools/requirements.txt
	@echo "ciel: installing into $(TOOLS) what tests/reach/tools needs"
	@$(PYTHON) -m venv $(TOOLS)
	@$(TOOLS)/bin/pip --quiet --disable-pip-version-check install -r tests/reach/tools/requirements.txt
	@site=$$($(TOOLS)/bin/python -c 'import site; print(site.getsitepackages()[0])') && \
		own=$$($(RUN)/python -c 'import site; print(site.getsitepackages()[0])') && \
		echo "import site; site.addsitedir('$$own')" >$$site/ciel-checkout.pth && \
		echo "$(CURDIR)/contrib/snakemake-executor-plugin-ciel" >$$site/ciel-plugins.pth
	@ln -sf $(CURDIR)/$(RUN)/ciel* $(TOOLS)/bin/
	@touch $(TOOLS_STAMP)

tools: $(TOOLS_STAMP)

# Run ciel inside Snakemake and other tools; some minutes.
check-tools: tools
	$(RUN)/pytest -q tests/reach/tools

# Run the installed file-system testers on `ciel shmfs mount`.
check-fuse: dev
	@$(RUN)/python -m benchmarks.storage.fuse_testers

# The source archive and a wheel for each of PYTHONS, in dist/, each checked where no compiler is; some minutes each.
PYTHONS ?= python3.11 python3.12 python3.13
release:
	@PYTHONS="$(PYTHONS)" .ci/release

# The site, in build/site; a warning is an error. `make docs-links` also asks whether pages of others are still there.
DOCS := rm -rf build/docs && mkdir -p build && cp -R docs build/docs && $(RUN)/sphinx-build -q -W --keep-going
docs: dev
	@$(DOCS) -d build/doctrees build/docs build/site
	@echo "ciel: build/site/index.html"

docs-links: dev
	@$(DOCS) -b linkcheck -d build/doctrees build/docs build/links

format: dev
	$(RUN)/ruff check --fix .
	$(RUN)/ruff format .

clean:
	find ciel executors scc -name '*.so' -delete
	rm -rf $(VENV) build dist *.egg-info ciel/launch/ciel-launcher ciel/launch/ciel-isolate executors/programs/ciel-cso executors/sdk/java/ciel-sdk.jar executors/sdk/lib/*.so scc/bin scc/*.so .pytest_cache .mypy_cache .ruff_cache
