# make quickstart       set up and run the whole pipeline on the demo shop
# make test-fast        the unit tests
# make test             set up and run linters and all tests but the slow ones
# make test-processors  the same tests under the machine's own instructions, AVX2 and SSE4; make test-avx2, make test-sse4
# make test-gpu         what a GPU computes against the CPU, where there is one
# make hostile          some 60,000 mutated inputs, frames and settings against readers (tests/hostile/README.md); ARGS=... passes on
# make slow             the tests that take minutes, and the one that installs a wheel
# make serve            serve the model of the demo shop over HTTP, trained first where needed
# make industrial       the whole pipeline on Industrial_and_Scientific (data/README.md says where its files come from)
# make industrial-best  the catalogue model there: the best small model, in minutes
# make demo-shop        rebuild the files of data/demo from data/demo/shop.yaml
# make hashes           rebuild the hashes of requirements/ from the versions there (needs uv on the path)
# make docs             build the documentation site, build/site
# make coverage         the unit tests with their line coverage: build/coverage
# make lint, make format, make venv, make clean

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FIRST := $(VENV)/.quickstart
FIRST_EXTRAS := plots,serve
EXTRAS := dev,gpu,http,docs,plots,tensorboard,peft,search,serve,wordllama
# Versions and hashes of every package; those of unhashed.txt are pinned by version alone.
HASHED := requirements/quickstart.txt requirements/develop.txt
UNHASHED := requirements/unhashed.txt
# Python compiles a module when it is first imported and caches it, unless that is turned off: packages hold many that
# are never imported, so pip need not compile them all.
PIP := $(BIN)/python -m pip install --disable-pip-version-check $(if $(PYTHONDONTWRITEBYTECODE),,--no-compile)
# uv where it is on the path; pip otherwise, or where uv fails.
UV := $(shell command -v uv)
install = $(if $(UV),$(UV) pip install --python $(BIN)/python $(1) ||) $(PIP) $(1)
# Tests run in this many processes of one thread each: one more than two cores, as a test waits now and then. A file's
# tests stay in one, since they share slow fixtures. Slow files come first by their folders' names, and among the unit tests
# by tests/conftest.py, so that no process is left with one at the end.
WORKERS ?= 3
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Tests and the pipelines of the demo and of Industrial need no network.
OFFLINE := HF_HUB_OFFLINE=1 HF_HUB_DISABLE_TELEMETRY=1 TRL_EXPERIMENTAL_SILENCE=1 TOKENIZERS_PARALLELISM=false
FIND_PYTHON := for name in python3.11 python3 python; do \
	if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$$name"; break; fi; done

MAKE_VENV = python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ]; then \
		echo "error: no Python of version 3.11 or later was found (python3.11, python3, python). Install one." >&2; exit 2; \
	fi; \
	if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		echo "Making $(VENV) with $$python"; "$$python" -m venv --clear $(VENV); \
	fi

.PHONY: quickstart test tests docs coverage test-fast test-gpu test-processors test-avx2 test-sse4 serve industrial industrial-best demo-shop venv hashes lint format slow hostile clean

quickstart: $(FIRST)
	$(OFFLINE) $(BIN)/minionerec run demo

# The linters beside the tests: mypy takes one core for most of a minute.
test: venv
	$(MAKE) --no-print-directory -j 2 lint tests

# Strict: a broken link is an error.
docs: venv
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

coverage: venv
	$(OFFLINE) $(BIN)/python -m pytest $(PARALLEL) --cov=minionerec --cov-report=term:skip-covered \
		--cov-report=html:build/coverage tests/unit

tests: venv
	$(OFFLINE) $(BIN)/python -m pytest $(PARALLEL)

test-fast: venv
	$(OFFLINE) $(BIN)/python -m pytest $(PARALLEL) tests/unit

# Matrix products are added up in another order under each instruction set and with each number of threads. Variables are
# those of PyTorch, oneDNN, MKL, OpenBLAS (NumPy, SciPy), Faiss and NumPy.
AVX2 := ATEN_CPU_CAPABILITY=avx2 DNNL_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OPENBLAS_CORETYPE=Haswell \
	FAISS_OPT_LEVEL=avx2 NPY_DISABLE_CPU_FEATURES="X86_V4 AVX512_ICL AVX512_SPR"
SSE4 := ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 MKL_ENABLE_INSTRUCTIONS=SSE4_2 OPENBLAS_CORETYPE=Nehalem \
	FAISS_OPT_LEVEL=generic NPY_DISABLE_CPU_FEATURES="X86_V3 X86_V4 AVX512_ICL AVX512_SPR"
PATIENT := OMP_WAIT_POLICY=PASSIVE $(OFFLINE) $(BIN)/python -m pytest --timeout 3000
test-processors: tests test-avx2 test-sse4

test-avx2: venv
	$(AVX2) OMP_NUM_THREADS=2 $(PATIENT) -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

test-sse4: venv
	$(SSE4) OMP_NUM_THREADS=3 $(PATIENT) $(ARGS)

test-gpu: venv
	MINIONEREC_TEST_DEVICE=cuda $(OFFLINE) $(BIN)/python -m pytest tests/gpu

slow: venv
	$(OFFLINE) $(BIN)/python -m pytest $(PARALLEL) -m slow

serve: $(FIRST)
	$(OFFLINE) $(BIN)/minionerec serve

# The seed of the mutations is an argument: make hostile ARGS="--hypothesis-seed 5"
hostile: venv
	HOSTILE_EXAMPLES=1800 $(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PARALLEL) --timeout 3600 \
		tests/hostile/test_mutated.py tests/hostile/test_frames.py tests/serve/test_mutated.py \
		tests/contrib/preference/test_mutated.py $(ARGS)

industrial: venv
	$(OFFLINE) $(BIN)/minionerec run industrial

industrial-best: venv
	$(OFFLINE) $(BIN)/minionerec run industrial/catalogue

demo-shop: venv
	$(BIN)/minionerec make-city --config data/demo/shop.yaml
	cp runs/demo-shop/city/items.csv runs/demo-shop/city/interactions.csv data/demo/
	$(BIN)/minionerec prepare-data --config demo\#data --output runs/demo-shop/corpus
	$(BIN)/minionerec city-ceiling --city runs/demo-shop/city --corpus runs/demo-shop/corpus --output runs/demo-shop/ceiling
	cp runs/demo-shop/ceiling/ceiling.json data/demo/

lint: venv docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

venv: $(STAMP)

# Every file of each version, of all platforms, so that the list holds on each of them. The versions are those in the file.
hashes:
	for file in $(HASHED); do \
		{ grep '^#' $$file; uv pip compile --quiet --no-deps --no-header --no-annotate --universal --generate-hashes \
			<(sed -n 's/ *\\$$//; /^[A-Za-z0-9]/p' $$file); } > .hashes.writing && mv .hashes.writing $$file || exit 1; \
	done

# Platform-independent files come first, each checked against its hash. Then torch, on its own: packages built on the
# machine need it. The last step fetches only those, and packages of other platforms.
$(STAMP): pyproject.toml $(HASHED) $(UNHASHED)
	@$(MAKE_VENV)
	$(call install,--no-deps --require-hashes $(HASHED:%=-r %))
	$(call install,-c $(UNHASHED) torch)
	$(call install,-c $(UNHASHED) --no-build-isolation -e '.[$(EXTRAS)]')
	@touch $(FIRST) $(STAMP)

$(FIRST): pyproject.toml $(HASHED) $(UNHASHED)
	@$(MAKE_VENV)
	$(call install,--no-deps --require-hashes -r requirements/quickstart.txt)
	$(call install,-c $(UNHASHED) torch)
	$(call install,--no-build-isolation -e '.[$(FIRST_EXTRAS)]')
	@touch $(FIRST)

clean:
	rm -rf runs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find minionerec scripts tests benchmarks studies -name __pycache__ -type d -prune -exec rm -rf {} +
