# The changes that VARIANT=asan, tsan or fuzz makes to the flags of a release.
WARN := -Wall -Wextra -Werror
OPT  := -O3

ifneq ($(findstring san,$(VARIANT)),)
override NVCC :=
endif

ifeq ($(VARIANT),asan)
OPT  := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
WARN := -Wall -Wextra
endif

# libgomp, oneDNN and MPI libraries were not compiled for ThreadSanitizer, so their race reports would all be false.
ifeq ($(VARIANT),tsan)
override OPENMP := 0
override DNNL := 0
override MPI := 0
OPT  := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
WARN := -Wall -Wextra -Wno-tsan
endif

# libFuzzer belongs to clang, which has a different OpenMP.
ifeq ($(VARIANT),fuzz)
override CC := $(if $(filter ccache,$(CC)),ccache )clang
override OPENMP := 0
override DNNL := 0
override MPI := 0
override NVCC :=
OPT  := -O2 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
WARN := -Wall -Wextra
endif
