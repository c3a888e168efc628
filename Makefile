# Everything from a bare Python 3.11 or 3.12 with pip and venv:
#   make install  the environment, .venv, with the checkout in it
#   make check    format, lint, types, import contracts, the tests that take no time: before a commit
#   make test     the same with all tests
#   make docs     the site, in site/, with every link and anchor checked
#   make demo     train baseline, shortened baseline and multigrid on real files, compare them
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= runs/demo
SEEDS ?= 0

# Modules are compiled by who imports them first, not all of torch's by pip.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install check test docs demo lint quick-tests all-tests clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v >= (3, 11) else \
	    f"Python 3.11 or newer is needed, $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable ".[dev,docs]"
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

quick-tests: install
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not gpu"

# tests/conftest.py has the long files go first.
all-tests: install
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

docs: export NO_MKDOCS_2_WARNING := 1
docs: install
	$(BIN)/mkdocs build --strict

# Its network is too thin for several threads: two runs side by side fill two cores. They slow each
# other down, so the speed-up is by step times that are measured alone, before them.
demo: export OMP_NUM_THREADS := 1
demo: install
	$(BIN)/python tools/make_demo_data.py --output $(DEMO)/data
	$(BIN)/python benchmarks/step_time.py --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml \
	    --rounds 11 --seconds 5 --dataset-size 640 --output $(DEMO)/step_times.json
	$(BIN)/python tools/compare.py --at-once 2 --cfg configs/Demo/SLOWFAST_DEMO.yaml \
	    --cfg configs/Demo/SLOWFAST_DEMO_MULTIGRID.yaml --equal-iterations --seeds $(SEEDS) \
	    --step-times $(DEMO)/step_times.json --output $(DEMO) DATA.PATH_TO_DATA_DIR $(DEMO)/data

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis site *.egg-info
