# `make dev` prepares everything that a contributor needs; `make demo` and `make test` need nothing before them.
# A recipe calls a program: programs are in tools/.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 4 # processes that share the tests; two more than cores, because half of the tests wait at times
NATIVE_SOURCES := $(shell find csrc -type f)

unexport PYTHONDONTWRITEBYTECODE # the suite starts over 200 Python processes: compile each module once

.PHONY: demo dev quick test check lint format way soak docs sanitize neon clean

demo: $(VENV)/.installed
	$(BIN)/zbench sweep sweeps/quickstart.yaml

# The environment of a contributor; call it again after a change of csrc/ or pyproject.toml.
dev: $(VENV)/.installed-test
	@echo "$(VENV) is ready: make quick after each change, make lint and make test before a commit"

# The tests that import a changed file; BASE is the revision to compare with.
BASE ?= HEAD
quick: $(VENV)/.installed-test
	$(BIN)/python -m tools.quick --base $(BASE) -n 2

# Each promise of a page at least once; `make check` has the wider samples, `make soak` those that take hours.
# SHARD=2/4 is the second of four parts.
SHARD ?= 1/1
test: $(VENV)/.installed-test
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check: $(VENV)/.installed-test
	$(BIN)/pytest -m "check and not soak" --shard $(SHARD) -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/prose.py

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A new user's whole way: install the wheel outside the clone, init, sweep, tune, export, train a step.
# `make way WAY=--deepspeed` installs everything anew, DeepSpeed too, instead of sharing this environment's packages.
WAY ?= --shared
way: $(VENV)/.installed-test
	$(BIN)/python tools/whole_way.py $(WAY)

soak: $(VENV)/.installed-test
	$(BIN)/pytest -m soak --shard $(SHARD)

# The engines beside torch's and DeepSpeed's: hours; `make benchmarks ONLY=small_models`, or a file's name of
# sweeps/benchmarks. Runs are in build/benchmarks, and an interrupted call goes on; records and tables in results/benchmarks.
.PHONY: benchmarks
benchmarks: $(VENV)/.installed
	$(BIN)/python -m tools.benchmarks.sweeps $(ONLY) $(BENCHMARK_FLAGS)

# The documentation site, into build/site; a broken link is an error.
docs: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "zbench[docs]"
	$(BIN)/python -m mkdocs build --strict --quiet

# The native core without Python under ASan, UBSan and TSan.
sanitize:
	csrc/tests/sanitize.sh

# NEON's bits under emulation, where a cross compiler and QEMU are found.
neon:
	csrc/tests/neon.sh

# The CUDA kernels for every architecture, by the NVRTC of NVIDIA's wheel. No GPU is needed.
.PHONY: nvrtc
nvrtc: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --target build/nvrtc nvidia-cuda-nvrtc
	PYTHONPATH=build/nvrtc $(BIN)/python -m pytest -rs tests/engine/adam/test_nvrtc.py

$(VENV)/.installed: pyproject.toml $(NATIVE_SOURCES)
	@tools/ready.sh "$(PYTHON)" "$(VENV)"

$(VENV)/.installed-test: pyproject.toml $(NATIVE_SOURCES)
	@tools/ready.sh "$(PYTHON)" "$(VENV)" test

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
