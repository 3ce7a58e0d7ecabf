include scripts/setup/versions

# cuda13 adds MLX's CUDA build to the set-up and runs everything with it
MLX_BACKEND ?=
SETUP = scripts/setup.sh $(if $(MLX_BACKEND),--backend $(MLX_BACKEND))
ifeq ($(MLX_BACKEND),cuda13)
export GOMFLUX_MLX = $(CURDIR)/.setup/cuda13/lib
endif
# so that build, test, docs-check and other checkouts share what the compiler has done
export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS)) -trimpath

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

setup: ## fetch MLX and build mlx-c and the tokenizers into .setup (MLX_BACKEND=cuda13 adds CUDA)
	@$(SETUP)

build: setup ## build bin/gomflux
	go build -o bin/gomflux ./cmd/gomflux

demo: build ## write a picture with the built-in model
	@mkdir -p out
	bin/gomflux generate --model shapes --prompt "a red circle left of a blue square" --seed 7 --output out/demo.png --overwrite
	@echo "The picture is $(CURDIR)/out/demo.png"

TEST = -short
GOTESTSUM = go run gotest.tools/gotestsum@$(GOTESTSUM_VERSION)
test: setup ## run vet and the tests but the long ones (TEST= runs these too), and list the slowest
	go vet ./...
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 go vet ./...
	@mkdir -p out
	$(GOTESTSUM) --format standard-quiet --hide-summary skipped --jsonfile out/tests.json --post-run-command "$(GOTESTSUM) tool slowest --threshold 3s" \
		-- -vet=off -timeout 1h $(TEST) -parallel 4 -exec $(CURDIR)/scripts/onecpu.sh ./...

race: setup ## run the tests of the packages with goroutines under the race detector
	go test -race -timeout 60m . ./internal/... ./mlx/... ./models/... ./debugger/... ./parity/... ./serve/... ./cmd/... ./scripts/serveload

FUZZTIME = 10s
fuzz: setup ## run every fuzz target (FUZZ="PACKAGE ...": of these packages) for FUZZTIME (10s)
	scripts/fuzz.sh $(FUZZTIME) $(FUZZ)

lint: setup ## check gofmt, staticcheck, the workflows and shell scripts (make test runs vet)
	@unformatted=$$(gofmt -l *.go */); test -z "$$unformatted" || { echo "gofmt -w these:"; echo "$$unformatted"; exit 1; }
	go run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION) ./...
	go run github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)
	@if command -v shellcheck >/dev/null; then shellcheck -S warning .ci/run scripts/*.sh scripts/*/*.sh; \
	else echo "shellcheck is not installed: the shell scripts were not checked"; fi

docs-check: setup ## run the commands and programs of the documentation, and check its links
	go run ./scripts/docscheck

# the archive for macOS has MLX for more than one version of it
dist: SETUP += $(if $(filter Darwin,$(shell uname -s)),--with-macos)
dist: setup ## pack gomflux with its libraries into dist/
	scripts/dist.sh

generate: setup ## make the generated Go files again
	go generate ./...

bench: build ## measure the phases of a generation (ARGS goes to gomflux bench)
	bin/gomflux bench $(ARGS)

bench-peers: build ## measure gomflux, mflux and diffusers in turn (ARGS goes to peers compare)
	scripts/bench/peers/run.sh compare $(ARGS)

VENV = .setup/venv-score
score: build $(VENV)/ready ## generate 500 pictures with the built-in model and count the right ones
	$(VENV)/bin/python scripts/train_shapes/generate.py out/score --force
	$(VENV)/bin/python scripts/train_shapes/check.py out/score --prompts scripts/train_shapes/prompts.json

score-inpaint: build $(VENV)/ready ## inpaint 200 drawn pictures with the built-in model and count the right ones
	$(VENV)/bin/python scripts/train_shapes/inpaint.py out/inpaint
	$(VENV)/bin/python scripts/train_shapes/generate.py out/inpaint/results --force --inpaint out/inpaint
	$(VENV)/bin/python scripts/train_shapes/inpaint.py out/inpaint --check out/inpaint/results

$(VENV)/ready: scripts/setup/score.txt
	rm -rf $(VENV)
	python3 -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check --require-hashes --only-binary=:all: -r $<
	touch $@

parity: build ## compare with diffusers on new random models (PARITY_SEED=N repeats a run, PARITY_KEEP=DIR keeps its files)
	scripts/reference/run.sh selftest --quick $(SELFTEST)
	scripts/bench/peers/run.sh selftest
	scripts/reference/run.sh parity bin/gomflux $(if $(PARITY_SEED),--seed $(PARITY_SEED)) $(if $(PARITY_KEEP),--keep "$(PARITY_KEEP)") $(ARGS)

mflux: build ## save small models with gomflux and with mflux, and read each other's folders
	scripts/reference/run.sh mflux bin/gomflux $(ARGS)

hub: setup ## have huggingface_hub use a stand-in of the hub, and gomflux its cache, and the other way round
	scripts/reference/run.sh --install
	GOMFLUX_HF_PYTHON="$(CURDIR)/.setup/reference/bin/python" go test -count=1 -run 'TestPython$$' ./internal/hub
	GOMFLUX_HF_PYTHON="$(CURDIR)/.setup/reference/bin/python" go test -count=1 -run 'TestScripts$$/huggingface_hub' ./cmd/gomflux

clients: setup ## test the server with openai-python, openai-node, and its page in a browser with axe-core
	scripts/clients/run.sh

# By chance, by another seed each time, what .ci/run repeats with fixed ones, and what takes long.
NIGHTLY_SEED := $(strip $(shell od -An -N4 -tu4 /dev/urandom))
NIGHTLY = tests matrix faults launch parity fuzz race
# RUN chooses tests of matrix, faults and launch, as -run does: RUN=TestMatrix/rows/krea/Krea-2-Raw
nightly: $(NIGHTLY:%=nightly-%) ## all of these, with random seeds (NIGHTLY_SEED=N repeats a run; make -k goes on after a failure)

nightly-tests: setup ## run vet and all tests, the long ones too
	$(MAKE) test TEST=

nightly-matrix: setup ## run every surface for every published model, small, and refine with every family
	GOMFLUX_MATRIX=all go test . ./cmd/gomflux -run "$(or $(RUN),TestMatrix|TestRefineFamilies)" -v -timeout 2h

nightly-faults: setup ## plant every fault in code, and split everything over processes
	GOMFLUX_FAULTS=all go test ./parity ./transformer ./vae ./models ./cmd/gomflux \
		-run "$(or $(RUN),TestCodeFaults|TestSplitGoldens|TestSplitSequence|TestSplitStages|TestGroup$$|TestAssistantProtocol)" -v -timeout 2h

nightly-launch: setup ## kill, stop, slow down and unplug ranks at random moments
	GOMFLUX_FAULTS=all GOMFLUX_TEST_SEED=$(NIGHTLY_SEED) go test ./cmd/gomflux -run "$(or $(RUN),TestLaunchFaults)" -v -parallel 4 -timeout 2h

nightly-parity: ## compare two random models of each family with diffusers
	$(MAKE) parity PARITY_SEED=$(NIGHTLY_SEED)

nightly-fuzz: ## run every fuzz target
	$(MAKE) fuzz

nightly-race: ## run the race detector with random moments
	GOMFLUX_TEST_SEED=$(NIGHTLY_SEED) $(MAKE) race

newcomer: setup ## the first hour of a user, from the build to twenty pictures and what goes wrong
	scripts/newcomer.sh

clean: ## remove what was built; .setup stays
	rm -rf bin dist out

.PHONY: help setup build demo test race fuzz lint docs-check dist generate bench bench-peers score score-inpaint parity mflux hub clients newcomer nightly $(NIGHTLY:%=nightly-%) clean
