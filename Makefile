# One verb per thing to do; `make help` lists them. Nothing here needs a terminal or standard input.
#   ARGS='...'   passed on to the command of test, test-fast, test-long, test-peers, demo, crash, bench, check-speed and profile
#   CASE=name    what make profile profiles
#   SEEDS=n      how many seeds `make sim` runs of the protocol's machines
#   SHELL_SEEDS=n  and of client, log and bookie
#   TLC_WORKERS=n  how many model checkers make spec runs at a time
#   WORKERS=n    how many tests run at a time (two more than there are processors, since some wait; 0: in this process, as for a debugger)
#   PYTHONS=...  what test-versions runs on (python3.11 to python3.14 and those of pyenv otherwise)
#   PYTHON=...   the interpreter to build .venv from (3.11 or newer; found by itself otherwise)

SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.ONESHELL:
.SILENT:
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: venv demo test test-fast test-long test-peers test-versions check check-speed profile fmt sim spec spec-long crash bench bench-peers peers charts docs changelog clean help servers versitygw

ARGS ?=
CASE ?= push
SEEDS ?= 1000
SHELL_SEEDS ?= 20
TLC_WORKERS ?= 2
# No test of the fast lane waits, and each further worker spends seconds of a processor on collecting it.
FAST_WORKERS := $(or $(WORKERS),$(shell getconf _NPROCESSORS_ONLN))
WORKERS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 2 )))
PYTHON ?=
PYTHONS ?=
VENV := .venv
BIN := $(VENV)/bin
CODE = $(wildcard hatch_build.py hatch_stubs.py src tests examples benchmarks plugins)
TYPED = $(wildcard hatch_build.py hatch_stubs.py src tests examples benchmarks plugins/*/src)
# Compiled code is kept even where the environment says otherwise: tests start hundreds of processes, each of which would
# compile all of replog again.
PYTEST = PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q

help: ## list the verbs
	sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

venv: $(VENV)/installed-dev ## make .venv with everything needed to work on replog

demo: $(VENV)/installed ## show what replog does, in this terminal (ARGS='...')
	$(BIN)/replog demo $(ARGS)

test-fast: $(VENV)/installed-dev ## run the tests that need no real time, socket or process, in a minute: after each edit
	$(PYTEST) -n $(FAST_WORKERS) --dist loadfile --no-loadscope-reorder --fast $(ARGS)

test: $(VENV)/installed-dev servers ## run all tests that a change can break, in minutes (ARGS='-k name')
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-long: $(VENV)/installed-dev servers ## run what takes many minutes (ARGS=--sample: a few minutes of it, as the gate does)
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder --long $(ARGS)
	$(if $(strip $(ARGS)),,$(PYTEST) -n $(WORKERS) --dist loadfile benchmarks/peers/tests)

test-peers: $(VENV)/installed-dev servers ## run the tests of what make bench-peers measures with
	$(PYTEST) -n $(WORKERS) --dist loadfile benchmarks/peers/tests $(ARGS)

test-versions: $(VENV)/installed-dev ## run the fast lane on every other Python that is here (PYTHONS='...'; ARGS=--sample: one case of every third test on the newest)
	PYTHONS="$(PYTHONS)" WORKERS="$(FAST_WORKERS)" $(BIN)/python -m tests.versions $(ARGS)

check: $(VENV)/installed-dev ## format, lint, types, layers, tidiness, documentation: changes nothing in git
	$(BIN)/python hatch_stubs.py
	# It builds all pages, which takes as long as a quarter of the rest: beside it.
	$(BIN)/python -m pytest -q --long tests/test_reference.py >$(VENV)/reference.txt 2>&1 </dev/null & reference=$$!
	trap 'kill $$reference 2>/dev/null || :' EXIT
	$(BIN)/ruff format --quiet --check $(CODE) || { echo "check: not formatted; run: make fmt"; exit 1; }
	$(BIN)/ruff check --quiet $(CODE)
	MYPYPATH=$$(echo $(wildcard plugins/*/src) | tr ' ' ':') $(BIN)/mypy --no-error-summary $(TYPED)
	for plugin in $(wildcard plugins/*); do
	    MYPYPATH=$$plugin/src:$$plugin/tests $(BIN)/mypy --no-error-summary $$plugin/tests
	done
	$(BIN)/lint-imports --no-logo > $(VENV)/lint-imports.txt || { cat $(VENV)/lint-imports.txt; exit 1; }
	# What pages say is checked here; the code on them is run by make test.
	$(BIN)/python -m pytest -q -k 'not test_code_on_a_page_runs' tests/test_docs.py tests/test_exports.py tests/test_tidy.py tests/test_words.py
	wait $$reference || { cat $(VENV)/reference.txt; exit 1; }
	echo "check: format, lint, types, layers, tidiness and documentation are in order"

fmt: $(VENV)/installed-dev ## format the code and mend what can be mended by itself
	$(BIN)/ruff check --quiet --fix-only $(CODE)
	$(BIN)/ruff format $(CODE)

sim: $(VENV)/installed-dev ## simulate the protocol (SEEDS=1000), then client, log and bookie (SHELL_SEEDS=20)
	$(BIN)/python -m tests.simulator --seeds $(SEEDS)
	$(BIN)/python -m tests.simulator --shells --seeds $(SHELL_SEEDS)

spec: $(VENV)/installed-dev servers ## check the specification (TLA+): small models exhaustively, and each rule left out
	$(BIN)/python -m tests.spec --workers $(TLC_WORKERS) $(ARGS)

spec-long: $(VENV)/installed-dev servers ## the same with larger models, for hours
	$(BIN)/python -m tests.spec --workers $(TLC_WORKERS) --long --timeout 36000 $(ARGS)

crash: $(VENV)/installed-dev servers ## kill real processes and check what they left behind
	$(PYTEST) -m crash $(ARGS)

bench: $(VENV)/installed-dev ## measure what matters most, in minutes, or what is asked for (ARGS='--case all': an hour)
	PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python -m benchmarks $(ARGS)

check-speed: $(VENV)/installed-dev ## compare what the hot paths execute with committed lines (ARGS=--move moves these)
	PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python -m benchmarks.speed $(ARGS)

bench-peers: $(VENV)/installed-dev ## measure replog beside what people would use instead (ARGS='--system etcd')
	PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python -m benchmarks.peers $(ARGS)

peers: $(VENV)/installed-dev servers ## get the programs of what replog is measured beside
	$(BIN)/python -m benchmarks.peers.programs

profile: $(VENV)/installed-dev ## draw a flame graph of a case of bench, or of peers: (CASE=push, CASE=peers:append)
	PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python -m benchmarks.profiling $(CASE) $(ARGS)

charts: $(VENV)/installed-dev ## draw the charts of the documentation again, from the figures in docs/figures
	PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(BIN)/python -m benchmarks.charts $(ARGS)

docs: $(VENV)/installed-docs ## build the documentation; a warning is an error
	$(BIN)/python -m sphinx -q -n -W --keep-going docs docs/_build/html
	echo "docs: open docs/_build/html/index.html"

changelog: $(VENV)/installed-dev ## show the changelog entry of the next release
	$(BIN)/towncrier build --draft

clean: ## remove what the other verbs made
	rm -rf $(VENV) $(VENV)-3.* build dist docs/_build src/replog/*/__init__.pyi .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests examples benchmarks plugins -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || :

# --- servers that tests run against ----------------------------------------------------------------------------------------
# Java, for the ZooKeeper among pyspark's jars: a package of the system, where we may install one. etcd: its Debian package, only
# unpacked into .venv, so that no service is left which takes its ports. Apache BookKeeper, and what Pulsar keeps in it: jars that Maven
# copies into .venv, where there is Maven. Tried once; what is missing then skips its tests. versitygw, a second S3, takes Go and some
# minutes: it is built if it is asked for.

servers: $(BIN)/pip
	have_java() { command -v java >/dev/null || [ -x "$${JAVA_HOME:-/nowhere}/bin/java" ]; }
	have_etcd() { command -v etcd >/dev/null || [ -x $(BIN)/etcd ]; }
	$(APT)
	install_java() { may_apt && apt update && apt install default-jre-headless; }
	unpack_etcd() {
		command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
		if may_apt; then apt update; fi
		directory=$$(mktemp -d)
		( cd "$$directory" && timeout 300 apt-get -qq -o APT::Sandbox::User=root download etcd-server </dev/null ) &&
			dpkg-deb -x "$$directory"/etcd-server_*.deb "$$directory/unpacked" &&
			"$$directory/unpacked/usr/bin/etcd" --version >/dev/null &&
			mv "$$directory/unpacked/usr/bin/etcd" $(BIN)/etcd || { rm -rf "$$directory"; return 1; }
		rm -rf "$$directory"
	}
	have_bookkeeper() { [ -d $(VENV)/peers/bookkeeper/lib ] && [ -d $(VENV)/peers/pulsar/lib ]; }
	have_versitygw() { command -v versitygw >/dev/null || [ -x $(BIN)/versitygw ]; }
	if [ ! -e $(VENV)/servers-tried ]; then
		have_java || { echo "make: no java, which runs ZooKeeper in tests; trying to install it"; install_java || :; }
		have_etcd || { echo "make: no etcd, which tests of replog-etcd need; trying to get it"; unpack_etcd || :; }
		have_bookkeeper || { echo "make: no jars of BookKeeper or Pulsar, which tests of replog-bookkeeper need; trying to get them"; \
			$(BIN)/python -m benchmarks.peers.programs bookkeeper pulsar </dev/null || :; }
		touch $(VENV)/servers-tried
	fi
	have_java || echo "make: no java: tests of ZooKeeper are skipped. Type:  sudo apt-get install -y default-jre-headless"
	have_etcd || echo "make: no etcd: tests of replog-etcd are skipped. Install etcd 3.4 or newer (Debian: etcd-server)"
	have_versitygw || echo "make: no versitygw: tests of replog-objects run against moto only. Install Go, then type:  make versitygw"
	have_bookkeeper || echo "make: no jars of BookKeeper or Pulsar: tests of replog-bookkeeper are skipped. Install maven and a JDK, then type:  rm $(VENV)/servers-tried && make servers"

versitygw: $(BIN)/pip ## build a second S3 server for the tests of replog-objects: needs Go, and minutes
	GOBIN="$(CURDIR)/$(BIN)" timeout 900 go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 </dev/null

# In a recipe: `may_apt` tells whether packages can be installed, `apt update` and `apt install PACKAGE...` do it.
define APT
sudo=
[ "$$(id -u)" = 0 ] || sudo='sudo -n'
may_apt() { command -v apt-get >/dev/null && $$sudo true 2>/dev/null; }
apt() {
	verb=$$1; shift
	[ "$$verb" = update ] || verb="$$verb -y --no-install-recommends"
	timeout 600 $$sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 $$verb "$$@" >/dev/null </dev/null
}
endef

# --- the virtual environment ---------------------------------------------------------------------------------------------
# Each stamp is newer than what it was installed from. `installed` is what a user gets, the others add tools.

EXTRAS_installed := [cli]
EXTRAS_installed-dev := [test,bench,lint,docs,recipes]
EXTRAS_installed-docs := [docs]
PROJECTS := $(wildcard plugins/*/pyproject.toml benchmarks/peers/pyproject.toml)
PROJECTS_installed-dev := $(patsubst %/pyproject.toml,-e ./%,$(PROJECTS))

$(VENV)/installed $(VENV)/installed-dev $(VENV)/installed-docs: pyproject.toml constraints.txt $(BIN)/pip
$(VENV)/installed-dev: $(PROJECTS)
$(VENV)/installed $(VENV)/installed-dev $(VENV)/installed-docs:
	echo "make: installing replog$(EXTRAS_$(@F)) into $(VENV)"
	PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
		$(BIN)/python -m pip install --quiet --no-input --no-compile -e '.$(EXTRAS_$(@F))' $(PROJECTS_$(@F)) </dev/null
	touch $@

# An environment that was half made (no pip), or whose Python went away, is made anew.
$(shell [ -e $(BIN)/python ] || rm -f $(BIN)/pip)
$(BIN)/pip:
	new_enough() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 </dev/null; }
	can_make_venv() { "$$1" -c 'import ensurepip, venv' >/dev/null 2>&1 </dev/null; }
	$(APT)
	found=
	# A distribution builds its Python optimized, pyenv does not unless told to: with the system's all tests take a fifth less.
	system=/usr/bin/python3
	{ new_enough $$system && can_make_venv $$system; } || system=
	for python in $(or $(PYTHON),$$system python3 python3.14 python3.13 python3.12 python3.11); do
		if new_enough "$$python"; then found=$$python; break; fi
	done
	if [ -z "$$found" ]; then
		echo "make: replog needs Python 3.11 or newer; $(or $(PYTHON),python3 and python3.11 to python3.14) are older or missing."
		echo "make: install one, or name it:  make $(or $(MAKECMDGOALS),venv) PYTHON=/path/to/python3.11"
		exit 1
	fi
	if ! can_make_venv "$$found"; then
		package=$$("$$found" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
		echo "make: $$found cannot make virtual environments; trying to install $$package"
		{ may_apt && apt update && apt install "$$package"; } || :
		if ! can_make_venv "$$found"; then
			echo "make: that did not work. Please type:  sudo apt-get update && sudo apt-get install -y $$package"
			echo "make: and then again:  make $(or $(MAKECMDGOALS),venv)"
			exit 1
		fi
	fi
	echo "make: creating $(VENV) with $$found"
	"$$found" -m venv --clear $(VENV) </dev/null
