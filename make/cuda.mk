# The GPU code (src/cuda): a separate library, libtrainer_cuda.so, that the trainers load when a run uses a GPU.
# It links its own copies of the few sources that it shares with the trainer. CUDA_INTERFACE is a checksum of the headers
# that both are compiled with, so that a library of another build is refused.
CUDA_INTERFACE := $(firstword $(shell cat $(addprefix src/,cuda/cuda_library.h \
                  backend/backend.h backend/operations.h backend/memory.h backend/factor.h backend/products.h \
                  comm/comm.h config/config.h base/log.h base/random.h) | cksum))
$(B)/src/device/cuda_load.o: CFLAGS_ += -DCUDA_INTERFACE=$(CUDA_INTERFACE)

# Sources of the trainer that the library has copies of; the virtual GPU's library has copies of them, too.
CUDA_SHARED := base/alloc base/log comm/comm comm/lending backend/memory backend/products backend/attention_scratch

ifneq ($(CUDA_SRC),)
CUDA_LIB    := $(B)/libtrainer_cuda.so
CUDA_OBJ    := $(CUDA_SRC:%=$(B)/%.o) $(CUDA_SHARED:%=$(B)/pic/src/%.o)
# Machine code for each generation that nvcc supports, and PTX of the last one for later GPUs. sm_100 also runs on
# sm_103, and sm_120 on sm_121.
CUDA_GENS   := $(filter $(shell $(NVCC) --list-gpu-code 2>/dev/null),sm_80 sm_90 sm_100 sm_120)
CUDA_NUMBER := $(CUDA_GENS:sm_%=%)
CUDA_ARCH   ?= $(foreach gen,$(CUDA_NUMBER),-gencode arch=compute_$(gen),code=sm_$(gen)) \
               -gencode arch=compute_$(lastword $(CUDA_NUMBER)),code=compute_$(lastword $(CUDA_NUMBER))
CUDA_HOST   := -fPIC -fvisibility=hidden $(OPT) $(MATH) $(WARN) $(SERIAL)
# We never write a graph as JSON. Without that code, the frontend compiles in 37 s instead of 62.
CUDA_INC    := -D_GNU_SOURCE $(INCLUDES) $(if $(FRONTEND),-DHAVE_CUDNN_FRONTEND -DCUDNN_FRONTEND_SKIP_JSON_LIB \
               -isystem $(dir $(FRONTEND)))
CUDA_LIBS   := -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lnccl $(if $(FRONTEND),-lcudnn -lnvrtc) -lcudart
# With CC="ccache gcc" the GPU code is cached, too.
CUDA_CACHE  := $(filter ccache,$(firstword $(CC)))

$(B)/cuda_flags: FORCE | found
	@mkdir -p $(@D)
	@echo '$(NVCC) $(HAVE_NVCC) $(CUDA_ARCH) $(CUDA_HOST) $(CUDA_INC) | $(CUDA_LIBS)' | cmp -s - $@ || \
	  echo '$(NVCC) $(HAVE_NVCC) $(CUDA_ARCH) $(CUDA_HOST) $(CUDA_INC) | $(CUDA_LIBS)' > $@

$(B)/src/cuda/%.cu.o: src/cuda/%.cu $(B)/cuda_flags
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(CUDA_CACHE) $(NVCC) -ccbin $(filter-out ccache,$(CXX)) -std=c++17 $(CUDA_ARCH) \
	  -Xcompiler $(subst $(space),$(comma),$(strip $(CUDA_HOST))) $(CUDA_INC) -MMD -MP -c $< -o $@

# Only glue between templates: the optimizer gains nothing here, and would double the compile time.
$(B)/src/cuda/attention_cudnn.cpp.o: CUDA_INC += -O1
$(B)/src/cuda/backend_cuda.cpp.o: CUDA_INC += -DCUDA_INTERFACE=$(CUDA_INTERFACE)
$(B)/src/cuda/%.cpp.o: src/cuda/%.cpp $(B)/cuda_flags
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(CUDA_CACHE) $(CXX) -std=c++17 $(CUDA_HOST) $(CUDA_INC) -I$(CUDA_HOME)/include -MMD -MP -c $< -o $@

$(B)/pic/%.o: %.c $(B)/cuda_flags
	$(call say,CC,$< (for the GPU library))
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c11 $(CUDA_HOST) -D_GNU_SOURCE $(INCLUDES) -MMD -MP -c $< -o $@

$(CUDA_LIB): $(CUDA_OBJ)
	$(call say,LD,$@)
	$(Q)$(CXX) -shared -Wl,-z,defs $(CUDA_OBJ) $(CUDA_LIBS) -o $@

# Programs find the library in their own folder.
$(B)/test/libtrainer_cuda.so $(B)/gpu/libtrainer_cuda.so: $(CUDA_LIB)
	@mkdir -p $(@D)
	@ln -sf ../libtrainer_cuda.so $@
$(B)/test/test_cuda $(B)/test/bench_gpu: | $(B)/test/libtrainer_cuda.so

# Checks the rules that the virtual GPU imitates on the real libraries (studies/first_gpu_day.sh).
$(B)/test/api_rules: test/cuda/api_rules.cc $(B)/cuda_flags
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(CUDA_CACHE) $(CXX) -std=c++17 -O1 $(WARN) $(CUDA_INC) -I$(CUDA_HOME)/include -MMD -MP -MF $@.d $< $(CUDA_LIBS) -o $@

# Asks cuDNN about our graphs; needs no device (test/cuda/test_cudnn.py).
ifneq ($(FRONTEND),)
ASK_CUDNN := $(B)/test/ask_cudnn
$(ASK_CUDNN): test/cuda/ask_cudnn.cpp $(B)/cuda_flags $(B)/pic/src/backend/attention_scratch.o $(B)/pic/src/backend/memory.o
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(CUDA_CACHE) $(CXX) -std=c++17 -O0 $(CUDA_INC) -I$(CUDA_HOME)/include -MMD -MP -MF $@.d $< $(filter %.o,$^) $(CUDA_LIBS) -o $@
endif
endif
