# Everything runs from a fresh clone with Python 3.11+ and make; nothing needs to be set up first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DOCS_READY := .venv/.docs-ready
SITE := docs/_build/html

EXPLORER_READY := explorer/node_modules/.ready
EXPLORER := src/posquad/report/explorer.html

.PHONY: reproduce test lint unit docs bench bench-gpu peers adversarial corpus chaos mutants clean help
.PHONY: explorer explorer-check explorer-vectors explorer-picture

help:
	@echo "make reproduce   run the paper's experiments and write reproduction/report.html"
	@echo "make test        install into .venv, then lint, types and tests"
	@echo "make lint        ruff and pyright only"
	@echo "make docs        build the documentation site, every warning an error"
	@echo "make bench       the benchmarks of docs/measured.md"
	@echo "make bench-gpu   gradients and recovery on a GPU, as ratios to plain torch (needs a CUDA GPU)"
	@echo "make peers       the comparison with other packages, checked cell by cell: docs/comparison.md"
	@echo "make adversarial the adversarial trials of tests/adversarial in full: certificates, selection, curvature, flows, recovery, estimator"
	@echo "make corpus      what is said of 10,000 small problems whose truth is known: build/corpus.json"
	@echo "make chaos       kill fits of files 90 times, damage files of 40, and kill sweeps 200 times; compare with undisturbed ones"
	@echo "make explorer    build the page of \`posquad explore\` from explorer/ (needs Node.js 20 and npm)"
	@echo "make explorer-check    the same, and compare with the committed page"
	@echo "make explorer-vectors  posquad's answers, with which the explorer's mathematics is compared"
	@echo "make mutants     random errors in the library, and how many the tests notice"
	@echo "make clean       remove .venv and everything built"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint,lab]'
	touch $(READY)

# Options go through ARGS: make reproduce ARGS="--quick --only 1,4"
reproduce: $(READY)
	$(BIN)/posquad reproduce $(ARGS)

test: lint unit

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

unit: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $(DOCS_READY)

# The text alone, without running the gallery: make docs SPHINXOPTS="-D plot_gallery=0"
docs: $(DOCS_READY)
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html $(SPHINXOPTS) docs $(SITE)
	$(BIN)/python docs/check_site.py $(SITE)
	@echo "$(SITE)/index.html"

bench: $(READY)
	$(BIN)/python benchmarks/gradient_pass.py
	$(BIN)/python benchmarks/extreme_curvature.py
	$(BIN)/python benchmarks/bregman.py
	$(BIN)/python benchmarks/recovery_table.py
	$(BIN)/python benchmarks/sensing.py
	$(BIN)/python benchmarks/certificates.py
	$(BIN)/python benchmarks/sweep_overhead.py
	$(BIN)/python benchmarks/race.py --docs docs/recovery-race.md
	$(BIN)/python benchmarks/real_tables.py --readme README.md --docs docs/measured.md
	$(BIN)/python benchmarks/volumes.py --gallery docs/gallery/plot_diffusion_tensors.py
	$(BIN)/python benchmarks/outliers.py --docs docs/measured.md
	$(BIN)/python benchmarks/intervals.py --docs docs/measured.md
	$(BIN)/python benchmarks/method_picture.py

bench-gpu: $(READY)
	$(BIN)/python benchmarks/gpu.py

# geomstats 2.8.0 imports numpy.trapz, which NumPy 2.4 removed: an environment of its own, one pin changed.
.venv-peers/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-peers
	sed 's/^numpy==.*/numpy==2.3.5/' constraints.txt > .venv-peers/constraints.txt
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-peers/constraints.txt -e '.[peers]'
	touch .venv-peers/.ready

peers: .venv-peers/.ready
	.venv-peers/bin/python benchmarks/peers.py --docs docs/comparison.md --readme README.md

adversarial: $(READY)
	$(BIN)/python benchmarks/adversarial.py $(ARGS)

# make corpus ARGS="--share 0.1 --jobs 2"; compare two versions by `benchmarks/corpus.py compare`.
corpus: $(READY)
	mkdir -p build
	$(BIN)/python benchmarks/corpus.py run --out build/corpus.json $(ARGS)

# make chaos ARGS="--fits 10 --kills 20 --seed 1"
chaos: $(READY)
	$(BIN)/python benchmarks/chaos.py $(ARGS)

# make mutants ARGS="--count 100 --seed 1"; the first run measures which tests execute which lines.
mutants: $(READY)
	$(BIN)/python benchmarks/mutants.py $(ARGS)

$(EXPLORER_READY): explorer/package.json explorer/package-lock.json
	cd explorer && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $(EXPLORER_READY)

explorer: $(EXPLORER_READY)
	cd explorer && npx tsc --noEmit && node build.mjs

explorer-check: $(EXPLORER_READY)
	mkdir -p build
	cd explorer && npx tsc --noEmit && node build.mjs ../build/explorer.html
	cmp build/explorer.html $(EXPLORER)

explorer-vectors: $(READY)
	$(BIN)/python explorer/export_problems.py
	$(BIN)/python explorer/export_vectors.py

# The picture of the README, of the page as it is committed.
explorer-picture: $(READY)
	$(BIN)/python explorer/picture.py

clean:
	rm -rf explorer/node_modules
	rm -rf .venv .venv-peers reproduction build dist docs/_build docs/auto_gallery docs/api/generated
	rm -rf .mutants .pytest_cache .ruff_cache .hypothesis .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
