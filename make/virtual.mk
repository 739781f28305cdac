# The virtual GPU (test/virtual): the trainers and test_cuda next to another libtrainer_cuda.so, in which src/cuda runs
# on our own CUDA runtime, cuBLASLt, cuDNN and NCCL. It needs neither nvcc nor CUDA's headers nor a driver. The programs
# differ from normal ones in two ways: calls of MPI go through test/virtual/messages.c, and the functions of
# VIRTUAL_WRAP go through test/virtual/dry.c, which omits work that is useless in a dry run.
VIRTUAL      := $(BUILD)/virtual
VIRTUAL_SRC  := $(wildcard test/virtual/*.cc)
VIRTUAL_OBJ  := $(VIRTUAL_SRC:%.cc=$(VIRTUAL)/%.o) \
                $(patsubst %,$(VIRTUAL)/%.o,$(wildcard src/cuda/*.cpp src/cuda/kernels/*.cu)) \
                $(patsubst %,$(VIRTUAL)/src/%.o,$(CUDA_SHARED) device/cost config/gpus config/bands config/gpu_kernels)
VIRTUAL_HOST := -fPIC -fvisibility=hidden -O3 -g $(MATH) $(WARN) $(SERIAL) -fno-strict-aliasing
VIRTUAL_INC  := -D_GNU_SOURCE -DHAVE_CUDNN_FRONTEND -DCUDA_INTERFACE=$(CUDA_INTERFACE) -Itest/virtual/include \
                $(INCLUDES) -MMD -MP
# Every load and store of a kernel calls a function that test/virtual/shadow.cc defines; libtsan is not linked.
VIRTUAL_SEEN := -DEMULATED -Wno-uninitialized -Wno-maybe-uninitialized -fsanitize=thread \
                --param tsan-instrument-func-entry-exit=0
VIRTUAL_NAPS := clock_gettime nanosleep sched_yield
VIRTUAL_WRAP := $(VIRTUAL_NAPS) device_open tensors_init step_guard_decide metrics_step metrics_val run_create \
    machine_look plan_check_machine mmap
VIRTUAL_MORE := $(VIRTUAL)/test/virtual/messages.o $(VIRTUAL)/test/virtual/dry.o
VIRTUAL_BIN  := $(TRAINERS:%=$(VIRTUAL)/%) $(VIRTUAL)/ranks_exchange $(VIRTUAL)/test_cuda $(VIRTUAL)/bench_gpu $(VIRTUAL)/api_rules
# The tests of the CPU's operations on the kernels (make/test.mk), and tests of what only a GPU has.
VIRTUAL_TESTS := $(OPERATIONS:%=$(VIRTUAL)/test_gpu_%) $(VIRTUAL)/test_kernels

.PHONY: virtual
virtual: $(VIRTUAL_BIN) $(VIRTUAL_TESTS) $(VIRTUAL)/libtrainer_cuda.so

$(VIRTUAL)/flags: FORCE | found
	@mkdir -p $(@D)
	@echo '$(CXX) $(VIRTUAL_HOST) $(VIRTUAL_INC) $(VIRTUAL_SEEN)' | cmp -s - $@ || \
	  echo '$(CXX) $(VIRTUAL_HOST) $(VIRTUAL_INC) $(VIRTUAL_SEEN)' > $@

$(VIRTUAL)/src/cuda/kernels/%.cu.o: src/cuda/kernels/%.cu $(VIRTUAL)/flags
	$(call say,CXX,$< (virtual))
	@mkdir -p $(@D)
	$(Q)$(filter ccache,$(CC)) $(CXX) -std=c++17 $(VIRTUAL_HOST) $(VIRTUAL_INC) $(VIRTUAL_SEEN) -x c++ -c $< -o $@

$(VIRTUAL)/%.cpp.o: %.cpp $(VIRTUAL)/flags
	$(call say,CXX,$< (virtual))
	@mkdir -p $(@D)
	$(Q)$(filter ccache,$(CC)) $(CXX) -std=c++17 $(VIRTUAL_HOST) $(VIRTUAL_INC) -c $< -o $@

$(VIRTUAL)/%.o: %.cc $(VIRTUAL)/flags
	$(call say,CXX,$< (virtual))
	@mkdir -p $(@D)
	$(Q)$(filter ccache,$(CC)) $(CXX) -std=c++17 $(VIRTUAL_HOST) $(VIRTUAL_INC) -DEMULATED -c $< -o $@

$(VIRTUAL)/%.o: %.c $(VIRTUAL)/flags
	$(call say,CC,$< (virtual))
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c11 $(VIRTUAL_HOST) $(VIRTUAL_INC) -Itest/virtual $(if $(HAVE_MPI),-DHAVE_MPI $(MPI_CFLAGS)) -c $< -o $@

$(VIRTUAL)/libtrainer_cuda.so: $(VIRTUAL_OBJ)
	$(call say,LD,$@)
	$(Q)$(CXX) -shared -Wl,-z,defs -Wl,-Bsymbolic $(VIRTUAL_NAPS:%=-Wl,--wrap=%) $(VIRTUAL_OBJ) -lpthread -o $@

$(VIRTUAL)/test/virtual/test_kernels.o: private VIRTUAL_HOST += -DEMULATED -Itest/support -Itest/cuda $(MANAGED)

# The library finds the data of messages.o and dry.o in the program.
$(TRAINERS:%=$(VIRTUAL)/%): $(VIRTUAL)/%: $(B)/%.o $(VIRTUAL_MORE) $(LIB) | $(VIRTUAL)/libtrainer_cuda.so
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) -rdynamic $(VIRTUAL_WRAP:%=-Wl,--wrap=%) $< $(VIRTUAL_MORE) $(LIB) $(LDLIBS_) -o $@

$(VIRTUAL)/ranks_exchange: $(B)/test/comm/ranks_exchange.o $(VIRTUAL_MORE) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) -rdynamic $(VIRTUAL_WRAP:%=-Wl,--wrap=%) $< $(VIRTUAL_MORE) $(LIB) $(LDLIBS_) -o $@

$(VIRTUAL)/test_cuda: $(B)/test/cuda/test_cuda.o $(MODEL_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $< $(MODEL_OBJ) $(LIB) -lcmocka $(LDLIBS_) -o $@

$(VIRTUAL)/bench_gpu: $(B)/test/bench/bench_gpu.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $^ $(LDLIBS_) -o $@

$(VIRTUAL)/test_gpu_%: $(B)/gpu/cpu/test_%.o $(VIRTUAL)/test/cuda/managed.o $(LIB) $(VIRTUAL)/libtrainer_cuda.so
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $(filter %.o,$^) $(LIB) -lcmocka -L$(@D) -ltrainer_cuda -Wl,-rpath,'$$ORIGIN' $(LDLIBS_) -o $@

$(VIRTUAL)/test_kernels: $(VIRTUAL)/test/virtual/test_kernels.o $(VIRTUAL)/test/cuda/managed.o $(VIRTUAL_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CXX) $(LDFLAGS_) $(VIRTUAL_NAPS:%=-Wl,--wrap=%) $(filter %.o,$^) $(LIB) -lcmocka $(LDLIBS_) -o $@

# Checks rules of CUDA and NCCL on the virtual libraries; $(B)/test/api_rules checks the same rules on the real ones.
$(VIRTUAL)/api_rules: $(VIRTUAL)/test/cuda/api_rules.o $(VIRTUAL_OBJ)
	$(call say,LD,$@)
	$(Q)$(CXX) $(VIRTUAL_NAPS:%=-Wl,--wrap=%) $^ -lpthread -o $@

-include $(shell find $(VIRTUAL) -name '*.d' 2>/dev/null)
