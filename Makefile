# Everything from a bare Python 3.11 to 3.14 with pip and venv:
#   make install  the environment, .venv, with the checkout in it; PYTHON=python3.13 chooses the interpreter,
#                 TORCH_INDEX=URL takes torch from another package index, such as PyTorch's own of CPU builds
#   make check    format, lint, types, import contracts, the tests that take no time: before a commit
#   make test     the same with all tests
#   make docs     the site, in site/, with every link and anchor checked
#   make demo     train baseline, shortened baseline and multigrid on real files, compare them
#   make gpu      on a machine with a GPU: its tests and measurements, into benchmarks/results; MINUTES=15 at most
#   make core     delete all extras (slowfast_patches/extras) from a copy, and run the quick tests of the core
#   make extras   the same, and with each extra deleted alone; some 10 minutes
#   make mutate   change the code in random places, and report which changes no test notices; SEED=1 COUNT=60
#   make demo-start          a short training on a tenth of the demo's videos
#   make update-constraints  choose the newest versions that pyproject.toml allows for constraints.txt
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Versions to install; make CONSTRAINTS=/dev/null installs the newest that pyproject.toml allows.
CONSTRAINTS ?= constraints.txt
DEMO ?= runs/demo
SEEDS ?= 0

# Modules are compiled by who imports them first, not all of torch's by pip.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install check test docs demo demo-start gpu update-constraints mutate core extras lint quick-tests all-tests clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else \
	    f"Python 3.11 or newer is needed, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
ifdef TORCH_INDEX
	$(BIN)/pip install --quiet --no-compile --constraint $(CONSTRAINTS) --index-url $(TORCH_INDEX) torch
endif
	$(BIN)/pip install --quiet --no-compile --constraint $(CONSTRAINTS) --editable ".[dev,docs]"
	@touch $@

# mypy takes one core; tests that wait for other processes leave some of two.
check: install
	@$(MAKE) --no-print-directory -j 2 lint quick-tests

test: install
	@$(MAKE) --no-print-directory -j 2 lint docs all-tests

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

core: install
	$(BIN)/python -m pytest -m extras tests/test_extras.py -k all

extras: install
	$(BIN)/python -m pytest -m extras tests/test_extras.py

quick-tests: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not gpu and not extras"

# tests/conftest.py has the long files go first.
all-tests: install
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

docs: export NO_MKDOCS_2_WARNING := 1
docs: install
	$(BIN)/mkdocs build --strict

# Its network is too thin for several threads, so two runs share the machine. The speed-up is by step times,
# which are measured alone before.
DEMO_JOBS ?= 2
# Freed memory stays with the process: to fetch it again takes a twentieth of the CPU time of a training.
demo: export OMP_NUM_THREADS := 1
demo: export MALLOC_MMAP_THRESHOLD_ := 1000000000
demo: export MALLOC_TRIM_THRESHOLD_ := 1000000000
demo: install
	$(BIN)/python tools/demo_data.py --output $(DEMO)/data
	$(BIN)/python benchmarks/step_time.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \
	    --rounds 5 --seconds 1 --dataset-size 640 --output $(DEMO)/steps.json
	$(BIN)/python tools/compare.py --cfg configs/Demo/SLOWFAST_DEMO.yaml \
	    --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml --equal-iterations --seeds $(SEEDS) --jobs $(DEMO_JOBS) \
	    --step-times $(DEMO)/steps.json --output $(DEMO) DATA.PATH_TO_DATA_DIR $(DEMO)/data

demo-start: install
	$(BIN)/python tools/demo_data.py --output $(DEMO)/few --train 64 --val 16 --test 8
	$(BIN)/python tools/run_net.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml SOLVER.LENGTH 0.5 MULTIGRID.EVAL_FREQ 1 \
	    TEST.ENABLE False OUTPUT_DIR $(DEMO)/start DATA.PATH_TO_DATA_DIR $(DEMO)/few

# Each part has a file, so the command skips it when it is repeated. The parts are in the order of
# their worth, and a part that has no time left is left to the next command.
RESULTS := benchmarks/results
MINUTES ?= 60
PART_SECONDS ?= 480
GPU_PARTS := host tests demo batchnorm layout precision sizes compile
ONE_GPU := NUM_GPUS 1 TRAIN.BATCH_SIZE 8 DATA_LOADER.NUM_WORKERS 0
STEPS = $(BIN)/python benchmarks/step_time.py --cfg configs/Kinetics/SLOWFAST_8x8_R50_MULTIGRID.yaml --seconds 3
GPU_tests = $(BIN)/python -m pytest -n 4 -m gpu
GPU_host = $(STEPS) --output $(RESULTS)/gpu_host.json --variants recipe host host_tf32 $(ONE_GPU) \
    TRAIN.MIXED_PRECISION True MODEL.CHANNELS_LAST True SOLVER.FUSED True TRAIN.CUDNN_BENCHMARK False
GPU_precision = $(STEPS) --variants plain tf32 mixed_precision $(ONE_GPU)
GPU_layout = $(STEPS) --variants plain cudnn_benchmark channels_last fused $(ONE_GPU)
GPU_compile = $(STEPS) --variants plain compile $(ONE_GPU)
GPU_sizes = $(STEPS) --variants plain size_divisor act_checkpoint $(ONE_GPU)
GPU_batchnorm = $(BIN)/python benchmarks/batchnorm.py --dtype bfloat16
GPU_demo = $(BIN)/python tools/compare.py --cfg configs/Demo/SLOWFAST_DEMO.yaml --output runs/demo_gpu \
    --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml DATA.PATH_TO_DATA_DIR runs/demo_gpu/prepared NUM_GPUS 1 \
    DATA_LOADER.NUM_WORKERS 8

gpu: install
	@$(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "torch finds no GPU here")'
	@failed=0; end=$$(($$(date +%s) + 60 * $(MINUTES))); for part in $(GPU_PARTS); do \
	    left=$$((end - $$(date +%s))); \
	    if [ $$left -lt 30 ]; then echo "No time is left for $$part. Repeat make gpu to continue"; failed=1; break; fi; \
	    $(MAKE) --no-print-directory PART_SECONDS=$$((left < 480 ? left : 480)) $(RESULTS)/gpu_$$part.md || failed=1; \
	    done; cat $(RESULTS)/gpu_*.md > $(RESULTS)/gpu.md && echo "The results are in $(RESULTS)/gpu.md"; exit $$failed

$(RESULTS)/gpu_demo.md: runs/demo_gpu/prepared/test.csv

runs/demo_gpu/prepared/test.csv: | install
	$(BIN)/python tools/demo_data.py --output runs/demo_gpu/data
	$(BIN)/python tools/prepare_data.py $(foreach split,train val test,--csv runs/demo_gpu/data/$(split).csv) --output runs/demo_gpu/prepared

$(RESULTS)/gpu_%.md:
	@echo "$* (to $@)"
	@(printf '## %s\n\n' '$*'; timeout --kill-after=20 $(PART_SECONDS) $(GPU_$*)) > $@.log 2>&1 \
	    || (echo "$* failed: see $@.log"; exit 1)
	@mv $@.log $@

# torch keeps the version of constraints.in; all others become the newest for Python 3.11 to 3.14.
update-constraints: install
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --no-annotate --upgrade \
	    --custom-compile-command "make update-constraints" --constraint constraints.in \
	    --output-file constraints.txt pyproject.toml

# Change the code in COUNT places, one at a time, and report which changes no test notices. Hours, for all packages.
MUTATED ?= projects/multigrid slowfast_patches
COUNT ?= 60
SEED ?= 0
mutate: install
	$(BIN)/python -m tests.faults.mutate $(MUTATED) --count $(COUNT) --seed $(SEED) --jobs 2

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis site *.egg-info
