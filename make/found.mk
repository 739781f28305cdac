# Detection of libraries and tools: HAVE_YAML, HAVE_DNNL, HAVE_OPENMP, HAVE_MPI, HAVE_NVCC, HAVE_NCCL, HAVE_CUDNN and
# FRONTEND; `make found` prints them. A library counts as found if its header is found and it links.
tries = $(shell echo 'int main(void) { return 0; }' | $(CC) -x c $(1) - -o /dev/null $(2) 2>/dev/null && echo 1)

ifeq ($(origin NVCC),undefined)
NVCC := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
endif

QUIET_GOALS := help clean format data uninstall dist
ifneq ($(filter-out $(QUIET_GOALS),$(or $(MAKECMDGOALS),all)),)
HAVE_YAML := $(call tries,-include yaml.h,-lyaml)
ifeq ($(HAVE_YAML),)
$(error libyaml is missing, and configurations cannot be read without it; run scripts/install_deps.sh)
endif
ifneq ($(DNNL),0)
HAVE_DNNL := $(call tries,-include dnnl.h,-ldnnl)
endif
ifneq ($(OPENMP),0)
HAVE_OPENMP := $(call tries,-fopenmp -include omp.h,-fopenmp)
endif
ifneq ($(MPI),0)
# Open MPI supports --showme, MPICH and its relatives -show (which prints the compiler's name first).
MPI_CFLAGS := $(shell $(MPICC) --showme:compile 2>/dev/null || $(MPICC) -show 2>/dev/null | tr ' ' '\n' | grep -E '^-[ID]')
MPI_LIBS := $(shell $(MPICC) --showme:link 2>/dev/null || $(MPICC) -show 2>/dev/null | tr ' ' '\n' | grep -E '^-([Ll]|Wl)')
HAVE_MPI := $(if $(MPI_LIBS),$(call tries,$(MPI_CFLAGS) -include mpi.h,$(MPI_LIBS)))
endif
ifneq ($(NVCC),)
HAVE_NVCC := $(shell $(NVCC) --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC))))
CUDA_TRY  := -I$(CUDA_HOME)/include -L$(CUDA_HOME)/lib64
HAVE_NCCL := $(if $(HAVE_NVCC),$(call tries,$(CUDA_TRY) -include cublasLt.h -include nccl.h,-lcublasLt -lnccl -lcudart))
HAVE_CUDNN := $(if $(HAVE_NCCL),$(call tries,$(CUDA_TRY) -include cudnn.h,-lcudnn -lnvrtc))
endif
FRONTENDS := .deps/cudnn-frontend/include /usr/include /usr/local/include
FRONTEND  := $(if $(HAVE_CUDNN),$(firstword $(wildcard $(FRONTENDS:%=%/cudnn_frontend.h))))
CUDA_SRC  := $(if $(HAVE_NCCL),$(wildcard src/cuda/*.cpp src/cuda/kernels/*.cu))
endif

.PHONY: found
off = $(if $(filter 0,$(1)),switched off,not found)
found:
	@if [ -t 1 ] && [ -z "$$NO_COLOR" ]; then g='\033[32m✓\033[0m'; r='\033[31m✗\033[0m'; else g='✓'; r='✗'; fi; \
	yes() { printf "$$g %s\n" "$$1"; }; no() { printf "$$r %s\n" "$$1"; }; \
	yes "libyaml"; \
	$(if $(HAVE_OPENMP),yes "OpenMP",no "OpenMP $(call off,$(OPENMP)): one thread a rank"); \
	$(if $(HAVE_DNNL),yes "oneDNN",no "oneDNN $(call off,$(DNNL)): our own matrix products, about 5 % slower"); \
	$(if $(HAVE_MPI),yes "MPI",no "MPI $(call off,$(MPI)): one rank$(comma) so no pipeline: it plans and trains with pipeline 1 only"); \
	$(if $(HAVE_NCCL),yes "nvcc $(HAVE_NVCC)$(comma) cuBLASLt and NCCL",no "nvcc $(if $(HAVE_NVCC),$(HAVE_NVCC) without cuBLASLt or NCCL,$(if $(NVCC),does not run,not found or switched off)): built for the CPU"); \
	$(if $(HAVE_NCCL),$(if $(FRONTEND),yes "cuDNN and its frontend in $(dir $(FRONTEND))",no "cuDNN $(if $(HAVE_CUDNN),frontend not found in $(FRONTENDS),not found): no cuDNN attention on GPUs"),:)
