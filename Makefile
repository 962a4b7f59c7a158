# Everything a developer runs. `make help` lists the targets.

CARGO ?= cargo
PYTHON ?= python3
SEED ?= 0
THREADS ?= 2

VENV := .venv
MODELS := .models
PARITY := tests/parity
SMOLLM2 := $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf
QWEN := $(MODELS)/Qwen2.5-Coder-0.5B-Instruct.gguf
LIBRARY_EXTENSION := $(if $(filter Darwin,$(shell uname)),dylib,so)

.DEFAULT_GOAL := help

.PHONY: help build demo test verify test-models test-clients test-gpu golden golden-http bench bench-gpu cuda-toolchain \
	lint doc clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## release build; lays each family's library beside its plugins/NAME/plugin.toml
	$(CARGO) build --release --workspace
	@for manifest in plugins/*/plugin.toml; do \
		[ -e "$$manifest" ] || continue; \
		folder=$$(dirname "$$manifest"); \
		library=libmetrale_$$(basename "$$folder" | tr - _).$(LIBRARY_EXTENSION); \
		cp "target/release/$$library" "$$folder/$$library.new" && mv "$$folder/$$library.new" "$$folder/$$library" || exit 1; \
		echo "$$folder/$$library"; \
	done

demo: build ## fetch a small model, serve it, ask it a question
	$(PYTHON) tests/demo/demo.py

test: build ## all tests that need no download
	$(CARGO) test --workspace
	$(PYTHON) tests/badinput/sweep.py

verify: build ## the conformance kit on each family's built library
	@for manifest in plugins/*/plugin.toml; do \
		target/release/metrale plugins verify "$$(dirname "$$manifest")" --plugins plugins || exit 1; \
	done

test-models: build ## tests on real models; skipped, loudly, where a download fails
	@$(PYTHON) $(PARITY)/model_tests.py --threads $(THREADS)

test-clients: build ## the API as public client libraries see it
	@$(PYTHON) tests/clients/run.py

test-gpu: ## the CUDA kernels against the CPU kernels, and every model on the GPU; skipped, loudly, without one
	$(CARGO) test --release -p metrale-kernels --test cuda
	$(CARGO) test --release -p metrale-tests --test gpu_llama --test gpu_qwen3_ssm --test gpu_nllb

golden: $(VENV)/golden ## make the golden models of SEED in target/golden/seed$(SEED)
	@for config in tests/golden/configs/*.json; do \
		$(VENV)/bin/python tests/golden/make_golden.py "$$config" --seed $(SEED) \
			--out target/golden/seed$(SEED)/$$(basename "$$config" .json) || exit 1; \
	done

golden-http: build ## serve the golden models of SEED and compare over HTTP (SEED=0: the committed ones)
	@if [ "$(SEED)" = 0 ]; then mkdir -p target/golden/seed0; for archive in tests/golden/seed0*.tar.gz; do \
		tar xzf "$$archive" -C target/golden/seed0 || exit 1; done; fi
	$(PYTHON) $(PARITY)/golden_http.py target/golden/seed$(SEED) -- --threads $(THREADS)

bench: build $(VENV)/peers ## decode and prefill speed beside llama.cpp; wants an idle machine
	@$(PYTHON) $(PARITY)/fetch.py smollm2 qwen2.5-coder-0.5b
	$(PYTHON) $(PARITY)/bench_decode.py --threads $(THREADS) --json target/bench.json $(SMOLLM2) $(QWEN)

bench-gpu: ## speed of the CUDA kernels beside a copy of the device's memory
	$(CARGO) run --release -p metrale-kernels --example cuda_bench

cuda-toolchain: .cuda/toolchain.txt ## nvcc in .cuda/, for builds with CUDA kernels where no CUDA toolkit is installed

lint: ## formatting and clippy, warnings denied
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

doc: ## API documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

clean: ## remove build outputs and plugin libraries; keeps downloads
	$(CARGO) clean
	rm -f plugins/*/*.$(LIBRARY_EXTENSION)

# A copy of the requirements is the stamp. Touching the build script makes cargo look for nvcc again.
.cuda/toolchain.txt: kernels/cuda/toolchain.txt
	$(PYTHON) -m pip install --quiet --no-deps --upgrade --target .cuda -r $<
	cp $< $@
	touch kernels/build.rs

# Python environments, each stamp names what it installed.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/golden: tests/golden/requirements.txt | $(VENV)/bin/python
	$(VENV)/bin/python -m pip install --quiet -r $<
	touch $@

# llama.cpp twice: compiled for this processor, and prebuilt.
$(VENV)/peers: $(PARITY)/requirements-peers.txt | $(VENV)/bin/python
	CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" CMAKE_BUILD_PARALLEL_LEVEL=$(THREADS) \
		$(VENV)/bin/python -m pip install --quiet -r $<
	touch $@
