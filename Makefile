# One command per need; `make help` lists them. Recipes are short; longer ones live in scripts/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
WEIR := $(TARGET_DIR)/release/weir
CLANG ?= clang-19
FUZZ_SECONDS ?= 600
FASTPATH_FUZZ_SECONDS ?= $(FUZZ_SECONDS)

.PHONY: help setup build bench bench-doctor test guides soak fuzz lint fmt docs nat-results pictures packages test-clang test-packages test-deploy test-kubernetes

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the missing system packages of build and tests (apt, root); starts no service
	@scripts/setup test

build: ## build target/release/weir
	cargo build --release --package weir
	@echo "built $(WEIR)"

bench: ## install the few packages it needs (not those of the tests), build, compare the NAT variants in the lab
	@scripts/setup bench
	@$(MAKE) --no-print-directory build
	$(WEIR) bench nat-instance --preset quick
	@echo "report: $$(ls -td runs/*/report.html | head -1)"

bench-doctor: ## measure the cost of the doctor: forwarding with and without it, and its analysis of a large machine
	@scripts/bench-doctor

test: ## everything: setup, lint, then all tests, as root in a private network and mount namespace
	@scripts/setup test
	@$(MAKE) --no-print-directory lint
	@scripts/test

test-clang: ## compile the BPF programs with another compiler, CLANG=clang-19, and run the tests that load them, as root
	@CLANG=$(CLANG) CARGO_TARGET_DIR=$(abspath $(TARGET_DIR))/$(notdir $(CLANG)) scripts/test \
		$(patsubst crates/%/build.rs,-p weir-%,$(shell grep -l weir_bpf_build crates/*/build.rs))

guides: build ## run the commands of every guide in a throw-away world, as root, and compare what they print
	@scripts/setup guides
	@scripts/guides

soak: ## run the long tests as root, about half an hour on a quiet machine
	@scripts/soak

fuzz: ## send malformed bytes to every parser for ten minutes, then as root packets through the fast path; or FUZZ_SECONDS=30
	@scripts/fuzz $(FUZZ_SECONDS)
	@scripts/fuzz-fastpath $(FASTPATH_FUZZ_SECONDS) $(FUZZ_SEED)

lint: ## format, clippy with warnings as errors, licences, circles and lengths of files, links, translations and words of the docs, the scripts
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	@scripts/check-licences
	@scripts/check-links
	@scripts/check-translations
	@scripts/compatibility check
	@scripts/check-circles
	@scripts/check-sizes
	@scripts/lint-words
	@scripts/self-test

fmt: ## format the code
	cargo fmt --all

docs: ## write the generated pages: docs/reference/causes, schemas, metrics.md
	@scripts/docs

nat-results: build ## measure all gateways of weir nat lab as root, and write their pages of docs/results
	@scripts/nat-results $(WEIR)

pictures: ## make docs/pictures of the README from real runs, as root, two minutes after the build
	@scripts/setup pictures
	@$(MAKE) --no-print-directory build
	@scripts/pictures/make

packages: ## build target/packages: deb, rpm, tarball and container image, six minutes on 2 cores
	@scripts/setup packages
	@scripts/package

test-packages: ## install, use, upgrade and purge the deb in fresh Debian roots, as root; after make packages
	@scripts/setup packages
	@scripts/test-packages

test-deploy: ## check deploy/, and boot its NAT instance in a lab, as root, in six minutes; after make packages
	@scripts/setup deploy
	@scripts/test-deploy

test-kubernetes: ## run deploy/kubernetes on a cluster of two nodes in a throw-away world, as root; after make packages; needs Go
	@scripts/setup kubernetes
	@scripts/test-kubernetes
