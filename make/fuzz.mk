# Fuzzing under ASan and UBSan: every target of test/fuzz gets random input for a given time or number of runs (make
# fuzz). make fuzz-replay runs only the corpus, with any compiler.
FUZZ_SECONDS ?= 60
FUZZ_RUNS    ?= 0
FUZZ_NAMES := $(basename $(notdir $(wildcard test/fuzz/fuzz_$(if $(T),$(T),*).c)))
FUZZ_BIN   := $(FUZZ_NAMES:%=$(B)/test/fuzz/%)
REPLAY_BIN := $(FUZZ_NAMES:fuzz_%=$(B)/test/fuzz/replay_%)

.PHONY: fuzz fuzz-targets fuzz-replay replay-targets
# A header that a target includes may change: make test compiles the targets, so that it is seen there.
test: $(FUZZ_NAMES:%=$(B)/test/fuzz/%.o)

fuzz:
	@command -v clang >/dev/null || { echo 'fuzz needs clang and its libraries: scripts/install_deps.sh --dev'; exit 1; }
	@$(MAKE) --no-print-directory VARIANT=fuzz fuzz-targets
	$(Q)$(PYTHON) test/fuzz/run.py --seconds $(FUZZ_SECONDS) --runs $(FUZZ_RUNS) $(FUZZ_NAMES:%=$(BUILD)/fuzz/test/fuzz/%)
fuzz-targets: $(FUZZ_BIN)
fuzz-replay:
	@$(MAKE) --no-print-directory VARIANT=asan replay-targets
replay-targets: $(REPLAY_BIN)
	$(Q)$(PYTHON) test/fuzz/run.py --replay $^

# This function counts differing letters. Tracing its comparisons takes half of the time and finds nothing.
$(BUILD)/fuzz/src/config/hints.o: private CFLAGS_ += -fno-sanitize=fuzzer-no-link

$(FUZZ_BIN): $(B)/%: $(B)/%.o $(MODEL_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) -fsanitize=fuzzer $(filter %.o,$^) $(LIB) $(LDLIBS_) -o $@

$(B)/test/fuzz/replay_%: $(B)/test/fuzz/fuzz_%.o $(B)/test/fuzz/replay.o $(MODEL_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $(filter %.o,$^) $(LIB) $(LDLIBS_) -o $@
