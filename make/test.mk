# Tests: each folder of src/ has a folder of test/. make finds test_*.c (unit tests), tool_*.c and ranks_*.c (programs
# that the Python tests start) and bench_*.c; pytest finds test_*.py. test/support has code that several tests share.
# All programs are built as $(B)/test/NAME, whatever their folder.
TEST_SRC  := $(sort $(shell find test -name '*.c' ! -path 'test/fuzz/*' ! -path 'test/virtual/*'))
named      = $(foreach source,$(TEST_SRC),$(if $(filter $(1),$(notdir $(source))),$(source)))
UNIT_SRC  := $(call named,test_%.c)
TOOL_SRC  := $(call named,tool_%.c ranks_%.c)
BENCH_SRC := $(call named,bench_%.c)
PROGRAMS  := $(UNIT_SRC) $(TOOL_SRC) $(BENCH_SRC)
twice     := $(foreach name,$(sort $(notdir $(PROGRAMS))),$(if $(word 2,$(filter %/$(name),$(PROGRAMS))),$(name)))
$(if $(strip $(twice)),$(error two folders of test/ have a $(firstword $(twice)); the names of test programs are unique))

program    = $(addprefix $(B)/test/,$(notdir $(basename $(1))))
chosen    := test_$(if $(T),$(patsubst test_%,%,$(T)),%)
TEST_BIN  := $(call program,$(call named,$(chosen).c))
TOOL_BIN  := $(call program,$(TOOL_SRC))
BENCH_BIN := $(call program,$(BENCH_SRC))
MODEL_OBJ := $(TRAINERS:%=$(B)/%.test.o)

# The tests of the CPU's operations, compiled for a GPU: the virtual one (make/virtual.mk), or with nvcc a real one.
OPERATIONS   := norm pointwise embedding cross_entropy adamw quantize experts latent orthogonalize
MANAGED      := -Dmalloc=managed_malloc -Dcalloc=managed_calloc -Dfree=managed_free
KERNEL_BIN   := $(if $(VARIANT:release=),,$(addprefix $(BUILD)/virtual/,$(filter $(chosen),\
                $(OPERATIONS:%=test_gpu_%) test_kernels)))

# ---- targets --------------------------------------------------------------------------------------------------------
.PHONY: unit test test-all test-cuda asan tsan valgrind bench bench-step soak
unit: $(TEST_BIN) $(KERNEL_BIN)
	$(Q)$(PYTHON) test/run_tests.py $(if $(filter tsan,$(VARIANT)),--no-aslr) $(TEST_BIN) $(KERNEL_BIN)

# make test: every unit test and the promises, one case of each kind. It does not run nvcc: the virtual GPU
# compiles the same sources. make test-all: all other cases (test/conftest.py), and the library that nvcc
# compiles. pytest finds the programs that it starts through TEST_PROGRAMS.
QUICK_BIN := $(filter-out %/test_cuda,$(TEST_BIN)) $(KERNEL_BIN)
test: programs tiny-data virtual $(QUICK_BIN) $(TOOL_BIN) $(BENCH_SRC:%.c=$(B)/%.o)
	$(Q)TEST_PROGRAMS=$(abspath $(B)/test) $(PYTHON) test/run_tests.py --pytest test --part promises $(QUICK_BIN)

test-all: all virtual $(TOOL_BIN) $(ASK_CUDNN) $(B)/test/test_kinds $(if $(CUDA_SRC),$(B)/test/test_cuda)
	$(Q)TEST_PROGRAMS=$(abspath $(B)/test) $(PYTHON) test/run_tests.py --pytest test --part rest \
	  $(if $(CUDA_SRC),$(B)/test/test_cuda)

# On a machine with a GPU: compares its operations with the CPU's, and runs the tests of the CPU's operations on it.
# Without a GPU these tests report that they are skipped.
ifneq ($(CUDA_SRC),)
GPU_BIN := $(OPERATIONS:%=$(B)/gpu/test_gpu_%)
test-cuda: programs gpu $(B)/test/test_cuda $(GPU_BIN)
	$(Q)$(PYTHON) test/run_tests.py $(B)/test/test_cuda $(GPU_BIN)
else
test-cuda:
	@echo 'test-cuda needs nvcc, cuBLASLt and NCCL'; exit 1
endif

asan tsan:
	@$(MAKE) --no-print-directory VARIANT=$@ unit

# Valgrind 3.19 lacks AVX-512. The build targets a smaller processor, and oneDNN is limited likewise (test/valgrind.sh).
valgrind:
	@command -v valgrind >/dev/null || { echo 'valgrind is not installed: scripts/install_deps.sh --dev'; exit 1; }
	@$(MAKE) --no-print-directory BUILD=build/valgrind MARCH=x86-64-v3 CFLAGS=-g NVCC= programs
	$(Q)test/valgrind.sh build/valgrind/release

bench: all $(BENCH_BIN)
	$(Q)for bench in $(BENCH_BIN); do echo "== $$(basename $$bench)"; $$bench || exit 1; done
	$(Q)for bench in $(wildcard test/bench/bench*.py); do echo "== $$bench"; $(PYTHON) $$bench || exit 1; done

# Only the ratios of a training step and of long attention, in at most 12 minutes on a quiet machine.
bench-step: programs $(B)/test/bench_ops
	$(Q)$(PYTHON) test/bench/bench_step.py

# Tests that take minutes: the long forms of tests, one after another.
soak: all virtual $(TOOL_BIN) $(ASK_CUDNN) $(B)/test/test_kinds
	$(Q)TEST_PROGRAMS=$(abspath $(B)/test) $(PYTHON) test/run_tests.py --pytest test --part soak
	$(Q)for soak in $(wildcard test/soak/*.py); do echo "== $$soak"; \
	  TEST_PROGRAMS=$(abspath $(B)/test) $(PYTHON) $$soak || exit 1; done

# ---- rules ----------------------------------------------------------------------------------------------------------
$(B)/test/%.o: private CFLAGS_ += -Itest/support

# The models for the unit tests: always compiled as C, with main renamed.
$(B)/%.test.o: %.cu $(B)/flags
	$(call say,CC,$< (for tests))
	@mkdir -p $(@D)
	$(Q)$(CC) -x c $(CFLAGS_) -Dmain=$(patsubst train_%,%,$*)_main -MMD -MP -c $< -o $@

$(foreach source,$(PROGRAMS),$(eval $(call program,$(source)): $(source:%.c=$(B)/%.o)))

$(TEST_BIN): $(MODEL_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $(filter %.o,$^) $(LIB) -lcmocka $(LDLIBS_) -o $@

$(TOOL_BIN) $(BENCH_BIN): $(MODEL_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $(filter %.o,$^) $(LIB) $(LDLIBS_) -o $@

$(B)/gpu/managed.o: test/cuda/managed.c $(B)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_) -I$(CUDA_HOME)/include -MMD -MP -c $< -o $@

$(B)/gpu/cpu/%.o: test/cpu/%.c $(B)/flags
	$(call say,CC,$< (on a GPU))
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_) -Itest/support -Dbackend_cpu_create=managed_backend_create $(MANAGED) -MMD -MP -c $< -o $@

$(B)/gpu/test_gpu_%: $(B)/gpu/cpu/test_%.o $(B)/gpu/managed.o $(LIB) | $(B)/gpu/libtrainer_cuda.so
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $< $(B)/gpu/managed.o $(LIB) -lcmocka $(CUDA_LIBS) $(LDLIBS_) -o $@
