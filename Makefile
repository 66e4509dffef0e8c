# Every target sets up what it needs in .venv: the first time takes minutes, later ones are quick.
#   make run         measure at the smoke preset into runs/smoke, then tables and checks
#   make test        the whole test suite
#   make reproduce   every table from the committed measurements; installs no torch
#   make serve       Prefect server and worker on 127.0.0.1, deployments registered; `make stop` ends both
#   make deployed FLOW=official-iss   one flow on that worker, watched; exit 1 where it fails
#   make record      what was measured into measurements/, into tables, dvc.lock and the store
#   make remeasure STAGE=official_iss@smollm2-135m-instruct   one frozen stage of dvc.yaml, measured again
#   make clean       remove everything that is not committed

PYTHON ?= python3
MODEL ?= smollm2-135m-instruct
PRESET ?= smoke
ROOT ?= runs/$(PRESET)
PORT ?= 4200
STAGE ?=
FLOW ?=
PARAMETERS ?=

BIN := .venv/bin
CLI := $(BIN)/python -m sparse_control
DVC ?= $(BIN)/dvc
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt

# one stamp per state of the requirements and place of the checkout, as a virtual environment cannot be moved
KEY := $(shell (cat constraints.txt pyproject.toml; pwd) | cksum | cut -d' ' -f1)
BASE := .venv/base-$(KEY)
ALL := .venv/all-$(KEY)

export HF_HUB_OFFLINE := 1
export PREFECT_HOME ?= $(CURDIR)/.prefect
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export DO_NOT_TRACK := 1
export PREFECT_CLI_PROMPT := false

.PHONY: run test reproduce serve stop clean deployments model corpus remeasure record deployed

run: corpus
	$(CLI) run official-iss --preset $(PRESET) --model $(MODEL) --root $(ROOT)
	$(CLI) run six-axis --preset $(PRESET) --model $(MODEL) --root $(ROOT)
	$(CLI) reproduce --root $(ROOT)
	$(CLI) verify --root $(ROOT)
	@echo "tables: $(ROOT)/paper/tables (index.html); in the terminal: $(CLI) show --root $(ROOT)"

test: corpus
	$(BIN)/python -m pytest -q

reproduce: $(BASE)
	$(CLI) reproduce

model: $(ALL)
	$(CLI) models fetch $(MODEL)

corpus: model
	$(CLI) corpus build

$(ALL):
	@echo "setting up .venv (first time: a few minutes)" >&2
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.[all]'
	@rm -f .venv/base-* .venv/all-*
	@touch $(ALL) $(BASE)

$(BASE):
	@echo "setting up .venv" >&2
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e .
	@rm -f .venv/base-* .venv/all-*
	@touch $(BASE)

# job control (set -m), as a background job of a plain shell ignores the interrupt by which a worker ends
serve: export PREFECT_API_URL := http://127.0.0.1:$(PORT)/api
serve: $(ALL) stop
	@mkdir -p $(PREFECT_HOME)
	@$(BIN)/python -c "import socket; socket.create_server(('127.0.0.1', $(PORT)))" 2>/dev/null || \
	  { echo "port $(PORT) is taken; choose another one: make serve PORT=4201" >&2; exit 1; }
	@bash -c 'set -m; nohup $(BIN)/prefect server start --host 127.0.0.1 --port $(PORT) > $(PREFECT_HOME)/server.log 2>&1 & echo $$! > $(PREFECT_HOME)/server.pid'
	@for second in $$(seq 120); do \
	  sleep 1; \
	  kill -0 $$(cat $(PREFECT_HOME)/server.pid) 2>/dev/null || second=120; \
	  test $$second -lt 120 || { tail -n 5 $(PREFECT_HOME)/server.log >&2; \
	    echo "the server did not start ($(PREFECT_HOME)/server.log); port taken? make serve PORT=4201" >&2; exit 1; }; \
	  $(BIN)/python -c "import urllib.request as u; u.urlopen('$(PREFECT_API_URL)/health', timeout=2)" 2>/dev/null && break; \
	done
	@$(BIN)/prefect work-pool create local --type process --overwrite >/dev/null
	@$(BIN)/prefect deploy --all >/dev/null
	@bash -c 'set -m; nohup $(BIN)/prefect worker start --pool local >> $(PREFECT_HOME)/worker.log 2>&1 & echo $$! > $(PREFECT_HOME)/worker.pid'
	@echo "server and worker run; log: $(PREFECT_HOME)/worker.log; end them with: make stop"
	@$(MAKE) --no-print-directory deployments

# one deployed flow, watched to its end; exit 1 where it failed
deployed: export PREFECT_API_URL ?= http://127.0.0.1:$(PORT)/api
deployed:
	@test -n "$(FLOW)" || { echo "name a flow: make deployed FLOW=official-iss PARAMETERS='-p preset=smoke'" >&2; exit 1; }
	@$(BIN)/python -c "import urllib.request as u; u.urlopen('$(PREFECT_API_URL)/health', timeout=5)" 2>/dev/null || \
	  { echo "no Prefect server at $(PREFECT_API_URL); type: make serve" >&2; exit 1; }
	@$(BIN)/prefect deployment run '$(FLOW)/$(FLOW)' $(PARAMETERS) --watch

deployments:
	@echo "export PREFECT_API_URL=http://127.0.0.1:$(PORT)/api"
	@for name in official-iss six-axis reproduce; do \
	  echo "$(BIN)/prefect deployment run '$$name/$$name' --watch"; done
	@echo "$(BIN)/prefect deployment run 'reproduce/reproduce' -p root=runs/smoke --watch"
	@echo "why a run failed stands in $(PREFECT_HOME)/worker.log"

# only a process that is Prefect's still: the number in an old file may belong to another one by now
stop:
	@for file in $(PREFECT_HOME)/worker.pid $(PREFECT_HOME)/server.pid; do \
	  test -f $$file || continue; \
	  number=$$(cat $$file); rm -f $$file; \
	  ps -o args= -p "$$number" | grep -q prefect || continue; \
	  kill $$number; \
	  for second in $$(seq 20); do kill -0 $$number 2>/dev/null || break; sleep 1; done; \
	  kill -9 $$number 2>/dev/null || true; \
	done

# after measuring into measurements/: tables, curves, lock and store as they now are; git is left to you
record:
	$(CLI) reproduce
	$(BIN)/python -m sparse_control.stages curves --root measurements
	$(BIN)/python -m sparse_control.stages store > store.new && mv store.new measurements/store.dvc
	$(DVC) commit --force --quiet dvc.yaml measurements/store.dvc
	$(DVC) push --quiet

# DVC only verifies a frozen stage, forced or not, and cannot unfreeze one of several models
remeasure:
	@test -n "$(STAGE)" || { echo "name a stage of dvc.yaml: make remeasure STAGE=official_iss@smollm2-135m-instruct" >&2; exit 1; }
	@bash -c 'kept=$$(mktemp) && cp dvc.yaml $$kept && trap "cp $$kept dvc.yaml; rm $$kept" EXIT && \
	  grep -v "^ *frozen: true$$" $$kept > dvc.yaml && $(DVC) repro --force --single-item $(STAGE)'

clean: stop
	rm -rf .venv .prefect .cache runs build *.egg-info .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
