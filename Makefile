# All commands for people and CI. Everything is installed inside this folder: Python and tools in .venv, Rust in target.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help build lint licenses advisories test test-rust test-python loom docs docs-serve demo bench bench-smoke clean

VENV := .venv
BIN := $(VENV)/bin
PIP := python -m pip

# Configures PyO3 for a free-threaded Python, which need not be installed: `cfg(Py_GIL_DISABLED)` is set.
FREE_THREADED := PYO3_CONFIG_FILE="$(CURDIR)/tests/data/interpreters/free_threaded_314.txt" CARGO_TARGET_DIR=target/free-threaded

RUST := build.rs Cargo.toml Cargo.lock python/penstock/_core.pyi $(shell find src -name '*.rs' -o -name '*.lua')
# The first interpreter on the PATH that is recent enough.
PYTHON3 := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v "$$p"; break; }; done)

RUST_VERSION := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# Recipes run inside .venv, regardless of the active environment.
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PYO3_PYTHON := $(VIRTUAL_ENV)/bin/python
export PATH := $(VIRTUAL_ENV)/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_QUIET := 1
unexport CONDA_PREFIX PYTHONHOME PYTHONPATH

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/.pip:
	@test -n "$(PYTHON3)" || { echo "penstock needs Python 3.11 or later on the PATH, found none" >&2; exit 1; }
	@command -v cargo >/dev/null || { echo "penstock needs Rust $(RUST_VERSION) or later on the PATH (cargo), found none: https://rustup.rs" >&2; exit 1; }
	@printf '%s\n' "$(RUST_VERSION)" "$$(cargo --version | cut -d ' ' -f 2)" | sort -VC || { echo "penstock needs Rust $(RUST_VERSION) or later, found $$(cargo --version); with rustup: rustup update stable" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "penstock needs a C compiler on the PATH (cc), found none; on Debian: apt-get install build-essential" >&2; exit 1; }
	@"$(PYTHON3)" -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON3) has no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
	"$(PYTHON3)" -m venv --clear $(VENV)
	$(PIP) install pip==26.3
	@touch $@

# Enough for a demo; other packages are installed when a target needs them.
$(VENV)/.tools: $(VENV)/.pip pyproject.toml
	$(PIP) install --group build --group demo
	@touch $@

$(VENV)/.dev: $(VENV)/.tools
	$(PIP) install --group dev
	@touch $@

# Release build; changes of Python files but the stub need no rebuild. Without --group, maturin would install all groups.
$(VENV)/.extension: $(VENV)/.tools $(RUST)
	@.ci/progress "building the extension, which takes two to five minutes the first time" maturin develop --release --locked --group build
	@touch $@

# The no-op extension that benchmarks are compared with.
$(VENV)/.noop: $(VENV)/.tools $(wildcard benches/noop/*.toml benches/noop/Cargo.lock benches/noop/src/*.rs)
	CARGO_TARGET_DIR="$(CURDIR)/target" maturin develop --quiet --release --locked --manifest-path benches/noop/Cargo.toml
	@touch $@

# A debug build compiles in a minute, and is fast enough.
CARGO_DENY := $(shell cargo deny --version >/dev/null 2>&1 && echo present || echo $(BIN)/cargo-deny)
$(BIN)/cargo-deny: | $(VENV)/.pip
	CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --root $(VENV) --target-dir target/tools cargo-deny@0.20.2

CARGO_ABOUT := $(shell cargo about --version >/dev/null 2>&1 && echo present || echo $(BIN)/cargo-about)
$(BIN)/cargo-about: | $(VENV)/.pip
	CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --locked --debug --root $(VENV) --target-dir target/tools cargo-about@0.9.3

.PHONY: present
present:

build: $(VENV)/.extension ## build the extension and install it into .venv

# One after the other, each with its number and, every half minute, a line that shows that it runs.
test: ## run everything, as CI does
	@.ci/progress "1 of 7: linters and types" $(MAKE) lint
	@.ci/progress "2 of 7: Rust tests" $(MAKE) test-rust
	@.ci/progress "3 of 7: models of two threads" $(MAKE) loom
	@.ci/progress "4 of 7: Python tests" $(MAKE) test-python
	@.ci/progress "5 of 7: docs" $(MAKE) docs
	@.ci/progress "6 of 7: demo" $(MAKE) demo
	@.ci/progress "7 of 7: benchmarks, briefly" $(MAKE) bench-smoke
	@echo "make test: all of lint, test-rust, loom, test-python, docs, demo and bench-smoke passed"

.PHONY: lint-tools
lint-tools:
	@git rev-parse --git-dir >/dev/null 2>&1 || { echo "make lint needs git and a clone of the repository, because it reads the list of tracked files" >&2; exit 1; }
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || { echo "make lint needs rustfmt and clippy; with rustup: rustup component add rustfmt clippy" >&2; exit 1; }

lint: lint-tools $(VENV)/.dev $(VENV)/.extension $(CARGO_DENY) ## check language, formatting, types, stub, import contracts, licenses; run linters
	python tests/language/check.py
	cargo fmt --check
	cargo clippy --locked --all-targets -- --deny warnings
	cargo clippy --locked --lib --features python -- --deny warnings
	$(FREE_THREADED) cargo rustc --quiet --locked --profile check --lib --crate-type rlib --features python -- --print cfg | grep -x Py_GIL_DISABLED
	$(FREE_THREADED) cargo clippy --locked --lib --features python -- --deny warnings
	cargo deny --all-features check licenses bans sources
	ruff check
	ruff format --check
	mypy
	PYRIGHT_PYTHON_USE_BUNDLED_PYRIGHT=1 pyright --pythonpath $(BIN)/python
	stubtest --allowlist tests/stubtest-allowlist.txt penstock._core
	lint-imports

# `uniq`: several versions of a crate are one line.
licenses: $(CARGO_ABOUT) ## write the licenses of the crates in the wheel to THIRD-PARTY-LICENSES
	cargo fetch --locked
	cargo about generate --locked --offline --fail --features python about.hbs | uniq > THIRD-PARTY-LICENSES

advisories: $(CARGO_DENY) ## check the crates for security advisories, which are downloaded
	cargo deny --all-features check advisories

SUDO := $(shell test "$$(id -u)" = 0 || command -v sudo)

# What runs on or behind servers is tested on real ones, installed from the system's packages if they are missing.
SERVERS := redis-server redis-sentinel nginx
HAS_SERVERS := for p in $(SERVERS); do PATH="$$PATH:/usr/sbin" command -v "$$p" >/dev/null || exit 1; done
.PHONY: servers
servers:
	@($(HAS_SERVERS)) || command -v apt-get >/dev/null || { echo "the tests need $(SERVERS) on the PATH, found not all of them" >&2; exit 1; }
	@($(HAS_SERVERS)) || { $(SUDO) apt-get -qq update && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 $(SUDO) apt-get -qq install --yes --no-install-recommends $(SERVERS) >/dev/null; }

test-rust: servers ## test the core without Python: unit tests, tests/rust, doc examples
	cargo test --locked

# A separate build, in which loom's locks and atomics replace the real ones.
loom: ## check models of two threads at one store, in every interleaving
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test --locked --no-default-features --features loom --profile loom --test loom --target-dir target/loom

# Reports are tested in a real browser, installed from the system's packages if it is missing.
CHROMIUM := $(shell for p in chromium chromium-browser google-chrome; do command -v "$$p" && break; done)
.PHONY: browser
browser:
	@test -n "$(CHROMIUM)" || command -v apt-get >/dev/null || { echo "the tests need Chromium on the PATH, found none" >&2; exit 1; }
	@test -n "$(CHROMIUM)" || { $(SUDO) apt-get -qq update && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get -qq install --yes --no-install-recommends chromium >/dev/null; }

test-python: browser servers $(VENV)/.dev $(VENV)/.extension ## test the package, its adapters, the code in the docs, the wheel
	pytest -m "" -n auto

docs: $(VENV)/.dev $(VENV)/.extension ## run the code in README, docs and docstrings; build the site and the Rust docs
	pytest tests/python/test_docs.py
	zensical build --strict
	python docs/assets/llms.py site
	RUSTDOCFLAGS="--deny warnings" cargo doc --locked --no-deps --document-private-items

docs-serve: $(VENV)/.dev ## show the site on http://127.0.0.1:8000, and again after each change
	zensical serve --dev-addr 127.0.0.1:8000

demo: $(VENV)/.extension ## start a server with example limits and show its responses
	PYTHONPATH=examples python -m flask_app.demo

bench: $(VENV)/.dev $(VENV)/.extension $(VENV)/.noop ## run all benchmarks, or BENCH="peers served", and write the pages
	python benches/python/all.py $(BENCH)

bench-smoke: $(VENV)/.dev $(VENV)/.extension $(VENV)/.noop ## run every benchmark briefly, to see that it works
	python benches/python/all.py --quick

clean: ## remove all files that git ignores
	git clean -dfX
