# Every target sets up what it needs in .venv: the first time takes minutes, later ones are quick.
#   make run         measure at the smoke preset into runs/smoke, then tables and checks
#   make test        the whole test suite
#   make docs        the documentation into docs/_build/html, warnings are errors
#   make reproduce   every table from the committed measurements; installs no torch
#   make paper       the paper and its supplement as PDF (pdflatex, bibtex)
#   make serve       Prefect server and worker on 127.0.0.1, deployments registered; `make stop` ends both
#   make deployed FLOW=official-iss   one flow on that worker, watched; exit 1 where it fails
#   make record      what was measured into measurements/, into tables, dvc.lock and the store
#   make remeasure STAGE=official_iss@MODEL   one frozen stage of dvc.yaml, measured again into measurements/
#   make clean       remove what these targets made, except what was measured (runs/)

PYTHON ?= python3
MODEL ?= smollm2-135m-instruct
PRESET ?= smoke
ROOT ?= runs/$(PRESET)
PORT ?= 4200
WORKERS ?= auto
STAGE ?=
FLOW ?=
LATEX := pdflatex -interaction=batchmode -halt-on-error
PARAMETERS ?=

BIN := .venv/bin
CLI := "$(BIN)/python" -m sparse_control
DVC ?= "$(BIN)/dvc"
PIP := "$(BIN)/python" -m pip install -qq --disable-pip-version-check -c constraints.txt

# one stamp per state of the requirements and place of the checkout, as a virtual environment cannot be moved
KEY := $(shell (cat constraints.txt pyproject.toml; pwd) | cksum | cut -d' ' -f1)
BASE := .venv/base-$(KEY)
ALL := .venv/all-$(KEY)

export HF_HUB_OFFLINE := 1

.PHONY: run test docs reproduce paper serve stop deployed clean model corpus remeasure record

run: corpus
	$(CLI) run official-iss --preset "$(PRESET)" --model "$(MODEL)" --root "$(ROOT)" --workers "$(WORKERS)"
	$(CLI) run six-axis --preset "$(PRESET)" --model "$(MODEL)" --root "$(ROOT)" --workers "$(WORKERS)"
	$(CLI) reproduce --root "$(ROOT)"
	$(CLI) verify --root "$(ROOT)"
	@echo "tables: $(ROOT)/paper/tables (index.html); in the terminal: .venv/bin/python -m sparse_control show --root '$(ROOT)'"

test: corpus
	"$(BIN)/python" -m pytest -q -n auto --maxprocesses=4 --dist loadfile

docs: $(ALL)
	"$(BIN)/python" -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "documentation: docs/_build/html/index.html"

reproduce: $(BASE)
	$(CLI) reproduce

paper: reproduce
	cd paper && $(LATEX) supplement && $(LATEX) main && bibtex main
	cd paper && $(LATEX) supplement && $(LATEX) main && $(LATEX) supplement && $(LATEX) main
	@echo "paper/main.pdf, paper/supplement.pdf"

model: $(ALL)
	$(CLI) models fetch "$(MODEL)"

corpus: model
	$(CLI) corpus build

$(ALL):
	@echo "setting up .venv (first time: a few minutes)" >&2
	test -x "$(BIN)/python" || "$(PYTHON)" -m venv .venv
	$(PIP) -e '.[all]'
	@rm -f .venv/base-* .venv/all-*
	@touch "$(ALL)" "$(BASE)"

$(BASE):
	@echo "setting up .venv" >&2
	test -x "$(BIN)/python" || "$(PYTHON)" -m venv .venv
	$(PIP) -e .
	@rm -f .venv/base-* .venv/all-*
	@touch "$(BASE)"

serve: $(ALL)
	@$(CLI) serve --port "$(PORT)"

deployed:
	@test -n "$(FLOW)" || { echo "name a flow: make deployed FLOW=official-iss PARAMETERS='-p preset=smoke'" >&2; exit 1; }
	@$(CLI) deployed "$(FLOW)" $(PARAMETERS)

stop:
	@test ! -x "$(BIN)/python" || $(CLI) stop

# after measuring into measurements/: tables, curves, lock and store as they now are; git is left to you
record:
	$(CLI) reproduce
	$(CLI) record curves
	$(CLI) record store
	$(DVC) commit --force --quiet dvc.yaml measurements/store.dvc
	$(DVC) push --quiet

# DVC only verifies a frozen stage, forced or not, and cannot unfreeze one of several models
remeasure:
	@test -n "$(STAGE)" || { echo "name a stage of dvc.yaml: make remeasure STAGE=official_iss@smollm2-135m-instruct" >&2; exit 1; }
	@bash -c 'kept=$$(mktemp) && cp dvc.yaml "$$kept" && trap "cp \"$$kept\" dvc.yaml; rm \"$$kept\"" EXIT && \
	  grep -v "^ *frozen: true$$" "$$kept" > dvc.yaml && $(DVC) repro --force --single-item "$(STAGE)"'

# by name, and never through a link: rm removes a link itself
clean: stop
	rm -rf .venv .prefect .cache build docs/_build sparse_control.egg-info .pytest_cache .hypothesis .ruff_cache
	find $(wildcard sparse_control tasks flows tests benchmarks) -name __pycache__ -type d -prune -exec rm -rf {} +
