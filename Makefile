# One command per need; `make help` lists them. Recipes are short: what is longer lives in scripts/.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
WEIR := $(TARGET_DIR)/release/weir
FUZZ_SECONDS ?= 600

.PHONY: help setup build bench bench-doctor test fuzz lint fmt docs

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the system packages that are missing (apt, root); starts no service
	@scripts/setup

build: ## build target/release/weir
	cargo build --release --package weir
	@echo "built $(WEIR)"

bench: setup build ## compare the built-in NAT variants in the lab, in a few minutes
	$(WEIR) bench nat-instance --preset quick
	@echo "report: $$(ls -td runs/*/report.html | head -1)"

bench-doctor: ## what the doctor itself costs: forwarding with and without it, and its analysis of a large machine
	@scripts/bench-doctor

test: lint ## everything: lint, then all tests, as root in a private network and mount namespace
	@scripts/test

fuzz: ## malformed bytes for every parser of what others send, ten minutes; or make fuzz FUZZ_SECONDS=30
	@scripts/fuzz $(FUZZ_SECONDS)

lint: ## format, clippy with warnings as errors, licences, the scripts themselves
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	@scripts/check-licences
	@scripts/self-test

fmt: ## format the code
	cargo fmt --all

docs: ## write the pages that weir itself makes: docs/causes, docs/run.schema.json
	@scripts/docs
