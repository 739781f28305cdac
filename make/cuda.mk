# GPUs. The models' .cu files hold no kernels: nvcc compiles them as C++ where it is found, gcc as C elsewhere.
# Kernels are in src/cuda and need nvcc.
ifneq ($(HAVE_NVCC),)
CUDA_ARCH ?= $(foreach gen,80 90,-gencode arch=compute_$(gen),code=sm_$(gen)) -gencode arch=compute_90,code=compute_90
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC))))
NVFLAGS   := -ccbin $(CXX) -std=c++17 $(DEFINES) $(INCLUDES) \
             -Xcompiler $(subst $(space),$(comma),$(strip $(HOST)))
CUDA_INC  := $(if $(FRONTEND),-DHAVE_CUDNN_FRONTEND -isystem $(dir $(FRONTEND)))
ifneq ($(CUDA_SRC),)
LIB_OBJ   += $(CUDA_SRC:%=$(B)/%.o)
LDLIBS_   += -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lnccl $(if $(FRONTEND),-lcudnn -lnvrtc) -lcudart -lstdc++
endif

$(B)/%.o: %.cu $(B)/flags
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) -x c++ $(NVFLAGS) -MMD -MP -c $< -o $@

$(B)/src/cuda/%.cu.o: src/cuda/%.cu $(B)/flags
	$(call say,NVCC,$<)
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(CUDA_ARCH) $(NVFLAGS) $(CUDA_INC) -MMD -MP -c $< -o $@

# Glue between templates: the optimizer finds nothing here, and takes twice as long to say so.
$(B)/src/cuda/attention_cudnn.cpp.o: CUDA_INC += -O1
$(B)/src/cuda/%.cpp.o: src/cuda/%.cpp $(B)/flags
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(CXX) -std=c++17 $(HOST) $(DEFINES) $(INCLUDES) -I$(CUDA_HOME)/include $(CUDA_INC) -MMD -MP -c $< -o $@
else
$(B)/%.o: %.cu $(B)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -x c $(CFLAGS_) -MMD -MP -c $< -o $@
endif
