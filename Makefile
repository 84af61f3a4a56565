# Every target sets up .venv when it is missing. Needs Python 3.11 or newer, and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

help:
	@echo "make demo    a federation on real digits: one model for all, FLAG's clusters, the truth; a minute"
	@echo "make test    the tests, without the slow ones"
	@echo "make slow    the slow tests"
	@echo "make faults  kills, disk errors, damaged and forged folders, mutated answers, odd command lines: the long campaigns; hours"
	@echo "make mutants planted bugs, each of which a test must catch; minutes"
	@echo "make check   lint, types, order of imports"
	@echo "make bench   speed of the engines and of the server's side, as ratios; memory; a table, JSON, plots; minutes"
	@echo "make bench-peers   the same work beside pfl and Flower, in an environment of their own; half an hour"
	@echo "make clean   remove .venv and caches"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "umbel needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@echo "Setting up .venv (once; torch is a large download) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY)
	@out=runs/demo-$$(date +%Y%m%d-%H%M%S) && \
	$(BIN)/umbel compare fedavg flag oracle --data digits --scenario rotation-4 --clients 12 --rounds 30 --seeds 2 \
		--out $$out && $(BIN)/umbel report $$out

test: $(READY)
	$(BIN)/python -m pytest -q -m "not slow" -n 2 --dist loadfile

# Triton's interpreter checks the GPU kernels on a CPU. A GPU build of torch brings Triton; elsewhere it is 300 MB that only
# these tests want, so it is fetched here, and where there is no wheel they are skipped.
slow: $(READY)
	@$(BIN)/python -c 'import triton' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check triton 2>/dev/null || \
		echo "Triton cannot be installed here: the tests of its kernels are skipped."
	$(BIN)/python -m pytest -q -m slow

mutants: $(READY)
	$(BIN)/python tests/mutants.py

# What the slow tests do a little of. Each prints what was tried and how it ended, and fails where something is wrong.
faults: $(READY)
	$(BIN)/python tests/faults/command_lines.py --count 500
	$(BIN)/python tests/faults/mutated_data.py --count 372
	$(BIN)/python tests/faults/links.py
	$(BIN)/python tests/faults/answers.py --count 10000
	$(BIN)/python tests/faults/forged.py --count 300
	$(BIN)/python tests/faults/folders.py --count 2000
	$(BIN)/python tests/faults/disk.py --every

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

bench: $(READY)
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/cpu.py
	$(BIN)/python benchmarks/server.py
	$(BIN)/python benchmarks/memory.py

PEERS := .venv-peers/bin/python
$(PEERS):
	@echo "Setting up .venv-peers (once; a large download) ..."
	@$(PYTHON) -m venv .venv-peers
	@$@ -m pip install --quiet --disable-pip-version-check pfl==0.6.0 'flwr[simulation]==1.41.0' torch==2.13.0

bench-peers: $(READY) $(PEERS)
	$(BIN)/python benchmarks/cpu.py --peers $(PEERS)

clean:
	rm -rf .venv .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis build

.PHONY: help demo test slow faults mutants check bench bench-peers clean
