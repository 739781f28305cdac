# Builds the trainers, the tiny data set and the tests. `make help` lists the targets and the switches.
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := all

# ---- switches -------------------------------------------------------------------------------------------------------
V       ?= 0
VARIANT ?= release
BUILD   ?= build
DNNL    ?= 1
MPI     ?= 1
OPENMP  ?= 1
# Compiling for GPUs takes a minute or two, and their libraries a third of a second at every start.
CUDA    ?= $(if $(wildcard /proc/driver/nvidia/version),1,0)
MARCH   ?= native
T       ?=
comma := ,
empty :=
space := $(empty) $(empty)
ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
MPICC  ?= mpicc
ifeq ($(origin NVCC),undefined)
NVCC := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
endif
# Debian's PyTorch, NumPy and pytest belong to the system's Python, whatever stands first in PATH.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)

ifneq ($(findstring san,$(VARIANT)),)
override NVCC :=
endif
# Race reports from libgomp, and from oneDNN and MPI libraries that were not compiled for it, would all be false.
ifeq ($(VARIANT),tsan)
override OPENMP := 0
override DNNL := 0
override MPI := 0
endif

# libFuzzer is clang's, which has another OpenMP.
ifeq ($(VARIANT),fuzz)
override CC := $(if $(filter ccache,$(CC)),ccache )clang
override OPENMP := 0
override DNNL := 0
override MPI := 0
override NVCC :=
endif

B := $(BUILD)/$(VARIANT)$(if $(filter tsan fuzz,$(VARIANT)),,$(if $(filter 0,$(DNNL)),-nodnnl)$(if $(filter 0,$(MPI)),-nompi)$(if $(filter 1,$(CUDA)),-cuda))

# ---- what this machine has ------------------------------------------------------------------------------------------
# The test is one a program would fail: the header is found and the library links.
tries = $(shell echo 'int main(void) { return 0; }' | $(CC) -x c $(1) - -o /dev/null $(2) 2>/dev/null && echo 1)

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
# Open MPI answers --showme, MPICH and its relatives -show (with the compiler's name in front).
MPI_CFLAGS := $(shell $(MPICC) --showme:compile 2>/dev/null || $(MPICC) -show 2>/dev/null | tr ' ' '\n' | grep -E '^-[ID]')
MPI_LIBS := $(shell $(MPICC) --showme:link 2>/dev/null || $(MPICC) -show 2>/dev/null | tr ' ' '\n' | grep -E '^-([Ll]|Wl)')
HAVE_MPI := $(if $(MPI_LIBS),$(call tries,$(MPI_CFLAGS) -include mpi.h,$(MPI_LIBS)))
endif
ifneq ($(NVCC),)
HAVE_NVCC := $(shell $(NVCC) --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
endif
FRONTENDS := .deps/cudnn-frontend/include /usr/include /usr/local/include
FRONTEND  := $(firstword $(wildcard $(FRONTENDS:%=%/cudnn_frontend.h)))
CUDA_SRC  := $(if $(HAVE_NVCC),$(if $(filter 1,$(CUDA)),$(filter-out $(if $(FRONTEND),,%_cudnn.cpp),\
             $(wildcard src/cuda/*.cu src/cuda/*.cpp src/cuda/kernels/*.cu))))
endif

# ---- flags ----------------------------------------------------------------------------------------------------------
WARN := -Wall -Wextra -Werror
OPT  := -O3
ifeq ($(VARIANT),asan)
OPT  := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
WARN := -Wall -Wextra
endif
ifeq ($(VARIANT),fuzz)
OPT  := -O2 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
WARN := -Wall -Wextra
endif
ifeq ($(VARIANT),tsan)
OPT  := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
WARN := -Wall -Wextra -Wno-tsan
endif

# No fast-math, and no contraction: where two loops must agree to the bit, the compiler may not fuse one of them.
MATH      := -march=$(MARCH) -ffp-contract=off -fno-math-errno
DEFINES   := -D_GNU_SOURCE $(if $(HAVE_DNNL),-DHAVE_DNNL) $(if $(HAVE_MPI),-DHAVE_MPI) \
             $(if $(CUDA_SRC),-DHAVE_CUDA)
INCLUDES  := -I. -Isrc
# Some variables are read by an OpenMP pragma and nothing else.
SERIAL    := -Wno-unknown-pragmas -Wno-unused-variable -Wno-unused-parameter
HOST      := $(OPT) $(MATH) $(WARN) $(if $(HAVE_OPENMP),-fopenmp,$(SERIAL))
CFLAGS_   := -std=c11 $(HOST) $(DEFINES) $(INCLUDES) $(if $(HAVE_MPI),$(MPI_CFLAGS)) $(CFLAGS)
LDFLAGS_  := $(OPT) $(if $(HAVE_OPENMP),-fopenmp) $(LDFLAGS)
LDLIBS_   := $(if $(HAVE_DNNL),-ldnnl) $(if $(HAVE_MPI),$(MPI_LIBS)) -lyaml -lm -lpthread $(LDLIBS)

# ---- sources --------------------------------------------------------------------------------------------------------
TRAINERS  := $(basename $(wildcard train_*.cu))
LIB_SRC   := $(wildcard bpipe.c src/*/*.c)
LIB_OBJ   := $(LIB_SRC:%.c=$(B)/%.o)
LIB       := $(B)/libtrainer.a
TEST_BIN  := $(patsubst %.c,$(B)/%,$(wildcard test/test_$(if $(T),$(patsubst test_%,%,$(T)),*).c))
BENCH_BIN := $(patsubst %.c,$(B)/%,$(wildcard test/bench_*.c))
TOOL_SRC  := $(wildcard test/tool_*.c test/ranks_*.c)
TOOL_BIN  := $(TOOL_SRC:%.c=$(B)/%)
HELP_OBJ  := $(patsubst %.c,$(B)/%.o,$(filter-out test/test_% test/bench_% $(TOOL_SRC),$(wildcard test/*.c)))
MODEL_OBJ := $(TRAINERS:%=$(B)/%.test.o)

FUZZ_NAMES := $(basename $(notdir $(wildcard test/fuzz/fuzz_$(if $(T),$(T),*).c)))
FUZZ_BIN   := $(FUZZ_NAMES:%=$(B)/test/fuzz/%)
REPLAY_BIN := $(FUZZ_NAMES:fuzz_%=$(B)/test/fuzz/replay_%)

# The kernels of src/cuda/kernels, run on the CPU by test/emulate: nvcc or not. The tests of the CPU's operations are
# compiled once more for them. ThreadSanitizer cannot follow the emulator's fibers.
EMULATED_OBJ := $(patsubst src/cuda/kernels/%.cu,$(B)/emulate/%.o,$(wildcard src/cuda/kernels/*.cu)) \
                $(B)/emulate/emulate.o $(B)/emulate/backend_emulated.o
EMULATED_ALL := $(addprefix test_cuda_,norm pointwise embedding cross_entropy adamw kernels) test_emulator
EMULATED_BIN := $(if $(filter tsan,$(VARIANT)),,$(addprefix $(B)/emulate/,$(filter \
                test_$(if $(T),$(patsubst test_%,%,$(T)),%),$(EMULATED_ALL))))

# The .cu files hold no kernels: nvcc compiles them as C++ where it is found, gcc as C elsewhere. Kernels, where there
# are any, live in src/cuda and need nvcc.
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
endif

# ---- short lines, or with V=1 the whole command -----------------------------------------------------------------------
ifeq ($(V),1)
Q :=
say = @:
else
Q := @
say = @printf '  %-4s %s\n' "$(1)" "$(2)"
endif

# ---- targets --------------------------------------------------------------------------------------------------------
.PHONY: all programs unit test test-cuda asan tsan bench soak data tiny-data format help clean found FORCE
.PHONY: docs install uninstall dist lint lint-format lint-tidy lint-cppcheck lint-shell
FORCE:

all: programs tiny-data

# In ./ stand the programs of the build made last; a running program is replaced, not overwritten.
programs: $(TRAINERS:%=$(B)/%)
ifeq ($(BUILD)-$(findstring san,$(VARIANT)),build-)
	@for program in $(TRAINERS); do cmp -s $(B)/$$program $$program || \
	  { cp $(B)/$$program .$$program.new && mv .$$program.new $$program && printf '  %-4s %s\n' '=>' ./$$program; }; done
endif

unit: $(TEST_BIN) $(EMULATED_BIN)
	$(Q)$(PYTHON) test/run_tests.py $(if $(filter tsan,$(VARIANT)),--no-aslr) $(TEST_BIN) $(EMULATED_BIN)

# Programs that tests start: pytest finds them through TEST_PROGRAMS.
test: all $(TEST_BIN) $(EMULATED_BIN) $(TOOL_BIN)
	$(Q)TEST_PROGRAMS=$(abspath $(B)/test) $(PYTHON) test/run_tests.py --pytest test $(TEST_BIN) $(EMULATED_BIN)

# On a machine with a GPU: its operations against the CPU's, and the tests of the CPU's operations once more on it.
# Without one they say that they are skipped.
ifneq ($(CUDA_SRC),)
GPU_BIN := $(addprefix $(B)/gpu/test_gpu_,norm pointwise embedding cross_entropy adamw)
test-cuda: programs $(B)/test/test_cuda $(GPU_BIN)
	$(Q)$(PYTHON) test/run_tests.py $(B)/test/test_cuda $(GPU_BIN)
else
test-cuda:
	@echo 'test-cuda needs a build for GPUs: make test-cuda CUDA=1, where nvcc is'; exit 1
endif

asan tsan:
	@$(MAKE) --no-print-directory VARIANT=$@ unit

# Every target of test/fuzz: random input for so long, or so often, under ASan and UBSan; and the corpus alone, with any compiler.
FUZZ_SECONDS ?= 60
FUZZ_RUNS    ?= 0
fuzz:
	@command -v clang >/dev/null || { echo 'fuzz needs clang and its libraries: scripts/install_deps.sh --dev'; exit 1; }
	@$(MAKE) --no-print-directory VARIANT=fuzz fuzz-targets
	$(Q)$(PYTHON) test/fuzz/run.py --seconds $(FUZZ_SECONDS) --runs $(FUZZ_RUNS) $(FUZZ_NAMES:%=$(BUILD)/fuzz/test/fuzz/%)
fuzz-targets: $(FUZZ_BIN)
fuzz-replay:
	@$(MAKE) --no-print-directory VARIANT=asan replay-targets
replay-targets: $(REPLAY_BIN)
	$(Q)$(PYTHON) test/fuzz/run.py --replay $^

# Valgrind 3.19 knows no AVX-512: built for a smaller processor, and oneDNN keeps to it (test/valgrind.sh).
valgrind:
	@command -v valgrind >/dev/null || { echo 'valgrind is not installed: scripts/install_deps.sh --dev'; exit 1; }
	@$(MAKE) --no-print-directory BUILD=build/valgrind MARCH=x86-64-v3 CFLAGS=-g NVCC= programs
	$(Q)test/valgrind.sh build/valgrind/release

bench: all $(BENCH_BIN)
	$(Q)for bench in $(BENCH_BIN); do echo "== $$(basename $$bench)"; $$bench || exit 1; done
	$(Q)for bench in $(wildcard test/bench*.py); do echo "== $$bench"; $(PYTHON) $$bench || exit 1; done

# What takes minutes: the long forms of tests, one after another.
soak: all $(TOOL_BIN)
	$(Q)for soak in $(wildcard test/soak/*.py); do echo "== $$soak"; \
	  TEST_PROGRAMS=$(abspath $(B)/test) $(PYTHON) $$soak || exit 1; done

data:
	$(Q)$(PYTHON) scripts/prepare_data.py --bible -o data

# The pages that the tables of options and keys make.
docs: programs
	$(call say,DOC,docs/configuration.md)
	$(Q)$(B)/train_llama --help-config --markdown > docs/configuration.md

# ---- installing, and passing on -----------------------------------------------------------------------------------------
NAME    := bpipe-trainer
version_is = $(shell sed -n 's/^#define $(1)  *"\(.*\)"/\1/p' src/base/version.h)
VERSION := $(call version_is,VERSION)
VERSION_DATE := $(call version_is,VERSION_DATE)
PREFIX  ?= /usr/local
PLACE   := $(DESTDIR)$(PREFIX)
# Scripts that are of no use without the source tree stay there.
SCRIPTS := $(shell find scripts -type f ! -name install_deps.sh ! -name cuda_check.sh ! -name reevaluate.py ! -path '*__pycache__*')
CONFIGS := $(wildcard configs/*.yaml configs/*/*.yaml)
PAGES   := $(wildcard *.md LICENSE docs/*.md docs/img/*.svg docs/img/*.png)

install: programs
	$(Q)install -d $(PLACE)/bin $(PLACE)/share/man/man1 $(PLACE)/share/bash-completion/completions \
	  $(PLACE)/share/zsh/site-functions $(PLACE)/share/$(NAME) $(PLACE)/share/doc/$(NAME)
	$(Q)for program in $(TRAINERS); do \
	  install -m 755 $(B)/$$program $(PLACE)/bin/$$program && \
	  $(B)/$$program --man > $(PLACE)/share/man/man1/$$program.1 && \
	  $(B)/$$program --completion bash > $(PLACE)/share/bash-completion/completions/$$program && \
	  $(B)/$$program --completion zsh > $(PLACE)/share/zsh/site-functions/_$$program || exit 1; done
	$(Q)cp --parents --preserve=mode $(CONFIGS) $(SCRIPTS) $(PLACE)/share/$(NAME)
	$(Q)cp --parents --preserve=mode $(PAGES) $(PLACE)/share/doc/$(NAME)
	@echo 'installed $(TRAINERS) under $(PLACE); configurations and scripts are in $(PLACE)/share/$(NAME)'

uninstall:
	$(Q)for program in $(TRAINERS); do \
	  rm -f $(PLACE)/bin/$$program $(PLACE)/share/man/man1/$$program.1 \
	  $(PLACE)/share/bash-completion/completions/$$program $(PLACE)/share/zsh/site-functions/_$$program; done
	$(Q)rm -rf $(PLACE)/share/$(NAME) $(PLACE)/share/doc/$(NAME)

# Every file that git knows, as it stands here now; the same files make the same bytes.
TARBALL := $(BUILD)/$(NAME)-$(VERSION).tar.gz
dist:
	@git rev-parse --is-inside-work-tree >/dev/null 2>&1 || \
	  { echo 'make dist packs what git knows, and this is no git checkout' >&2; exit 1; }
	@mkdir -p $(BUILD)
	$(Q)git ls-files -z | tar --create --null --files-from=- --transform='s,^,$(NAME)-$(VERSION)/,' --sort=name \
	  --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX --mtime='$(VERSION_DATE)' | gzip -n -9 > $(TARBALL)
	@echo '$(TARBALL)'

# The programs are worth having without the text, so its absence stops nothing here.
tiny-data:
	@ls data/bible_train_*.bin >/dev/null 2>&1 || $(PYTHON) scripts/prepare_data.py --bible -o data || \
	  echo 'no data set yet: run scripts/install_deps.sh and then make data, or scripts/prepare_data.py FILE...'

FORMATTED := $(wildcard *.c *.h *.cu src/*/*.[ch] src/cuda/*.cu src/cuda/*.cpp src/cuda/*.cuh \
             src/cuda/kernels/* test/*.[ch] test/fuzz/*.[ch] test/emulate/*)
format:
	$(Q)clang-format -i $(FORMATTED)

# Left out: checks that misread this code, such as those that need to know what error_set returns, and those that warn
# of products of small constants.
TIDY := bugprone-* clang-analyzer-unix.* -bugprone-easily-swappable-parameters -bugprone-narrowing-conversions \
        -bugprone-reserved-identifier -bugprone-sizeof-expression -bugprone-macro-parentheses \
        -bugprone-misplaced-widening-cast -bugprone-not-null-terminated-result -bugprone-integer-division \
        -bugprone-implicit-widening-of-multiplication-result -bugprone-branch-clone
lint: lint-format lint-tidy lint-cppcheck lint-shell
lint-format:
	$(Q)clang-format --dry-run -Werror $(FORMATTED) && echo '✓ clang-format'
lint-tidy:
	$(Q)if command -v clang-tidy >/dev/null; then clang-tidy --quiet --warnings-as-errors='*' \
	  --checks='-*$(subst $(space),,$(TIDY:%=$(comma)%))' $(LIB_SRC) -- -std=c11 $(DEFINES) $(INCLUDES) $(MPI_CFLAGS) \
	  2>/dev/null && echo '✓ clang-tidy'; else echo '✗ clang-tidy: not installed (scripts/install_deps.sh --dev)'; fi
lint-cppcheck:
	$(Q)if command -v cppcheck >/dev/null; then cppcheck --quiet --std=c11 --enable=warning,portability \
	  --inline-suppr --suppress=uninitvar --suppress=legacyUninitvar --suppress=memleak --error-exitcode=1 \
	  $(DEFINES) $(INCLUDES) $(LIB_SRC) && echo '✓ cppcheck'; \
	  else echo '✗ cppcheck: not installed (scripts/install_deps.sh --dev)'; fi
lint-shell:
	$(Q)if command -v shellcheck >/dev/null; then shellcheck $(wildcard scripts/*.sh scripts/slurm/*) .ci/run && echo '✓ shellcheck'; \
	  else echo '✗ shellcheck: not installed (scripts/install_deps.sh --dev)'; fi

help:
	@echo 'make            the trainers, and the tiny data set where it is absent'
	@echo 'make test       every C unit test and every pytest; the last line is "N passed, N failed"'
	@echo 'make unit       the C unit tests alone; T=dataset runs test/test_dataset.c alone'
	@echo 'make asan       the C unit tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make tsan       the C unit tests under ThreadSanitizer (portable form, without OpenMP)'
	@echo 'make fuzz       made-up input for everything that is read; FUZZ_SECONDS=60 FUZZ_RUNS=1000000 T=json (clang)'
	@echo 'make valgrind   both trainers under memcheck, one rank, some minutes'
	@echo 'make fuzz-replay  the corpus of make fuzz alone'
	@echo 'make test-cuda  the tests that need a GPU (CUDA=1)'
	@echo 'make bench      speed ratios of this machine'
	@echo 'make soak       the long forms of tests, minutes each (test/soak)'
	@echo 'make data       the tiny data set in data/ (scripts/prepare_data.py FILE... takes your own text)'
	@echo 'make docs       docs/configuration.md, from the table of keys'
	@echo 'make format     clang-format over the sources;   make lint   the checks'
	@echo 'make install    programs, manual pages, completion, configurations, scripts and docs; PREFIX=/usr/local DESTDIR='
	@echo 'make uninstall  takes them away;   make dist   a tarball of this version in build/'
	@echo 'make clean      build/ and the programs; data stays'
	@echo
	@echo 'V=1 whole commands   DNNL=0 MPI=0 OPENMP=0 without the library   NVCC= without nvcc'
	@echo 'CC=gcc CXX=g++ MPICC=mpicc PYTHON=python3   MARCH=x86-64-v3 for another machine   BUILD=dir'

clean:
	rm -rf $(BUILD) $(TRAINERS)

# ---- what was found, and what a cross costs -----------------------------------------------------------------------------
off = $(if $(filter 0,$(1)),switched off,not found)
found:
	@if [ -t 1 ] && [ -z "$$NO_COLOR" ]; then g='\033[32m✓\033[0m'; r='\033[31m✗\033[0m'; else g='✓'; r='✗'; fi; \
	yes() { printf "$$g %s\n" "$$1"; }; no() { printf "$$r %s\n" "$$1"; }; \
	yes "libyaml"; \
	$(if $(HAVE_OPENMP),yes "OpenMP",no "OpenMP $(call off,$(OPENMP)): one thread a rank"); \
	$(if $(HAVE_DNNL),yes "oneDNN",no "oneDNN $(call off,$(DNNL)): our own matrix products, about 5 % slower"); \
	$(if $(HAVE_MPI),yes "MPI",no "MPI $(call off,$(MPI)): one rank$(comma) so no pipeline: it plans and trains with pipeline 1 only"); \
	$(if $(HAVE_NVCC),yes "nvcc $(HAVE_NVCC)",no "nvcc $(if $(NVCC),does not run,not found or switched off): built for the CPU"); \
	$(if $(HAVE_NVCC),$(if $(FRONTEND),yes "cuDNN frontend in $(dir $(FRONTEND))",no "cuDNN frontend not found in $(FRONTENDS): no cuDNN attention on GPUs"),:)

# ---- rules ----------------------------------------------------------------------------------------------------------
# Written only when it changes; everything compiled depends on it, so other flags rebuild.
$(B)/flags: FORCE | found
	@mkdir -p $(@D)
	@echo '$(CC) $(CFLAGS_) | $(HAVE_NVCC) $(NVFLAGS) | $(LDFLAGS_) $(LDLIBS_)' | cmp -s - $@ || \
	  echo '$(CC) $(CFLAGS_) | $(HAVE_NVCC) $(NVFLAGS) | $(LDFLAGS_) $(LDLIBS_)' > $@

$(B)/members: FORCE
	@mkdir -p $(@D)
	@echo '$(LIB_OBJ)' | cmp -s - $@ || echo '$(LIB_OBJ)' > $@

$(B)/%.o: %.c $(B)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_) -Itest -MMD -MP -c $< -o $@

$(LIB): $(LIB_OBJ) $(B)/members
	$(call say,AR,$@)
	@rm -f $@
	$(Q)ar rcs $@ $(LIB_OBJ)

ifneq ($(HAVE_NVCC),)
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

$(TRAINERS:%=$(B)/%): $(B)/%: $(B)/%.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CXX) $(LDFLAGS_) $< $(LIB) $(LDLIBS_) -o $@

# The models for the unit tests: always as C, under another name than main.
$(B)/%.test.o: %.cu $(B)/flags
	$(call say,CC,$< (for tests))
	@mkdir -p $(@D)
	$(Q)$(CC) -x c $(CFLAGS_) -Dmain=$(patsubst train_%,%,$*)_main -MMD -MP -c $< -o $@

$(TEST_BIN): $(B)/%: $(B)/%.o $(HELP_OBJ) $(MODEL_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $< $(HELP_OBJ) $(MODEL_OBJ) $(LIB) -lcmocka $(LDLIBS_) -o $@

# A count of differing letters: following its every comparison takes half of the time and leads nowhere.
$(BUILD)/fuzz/src/base/suggest.o: CFLAGS_ += -fno-sanitize=fuzzer-no-link

$(FUZZ_BIN): $(B)/%: $(B)/%.o $(B)/test/fuzz/files.o $(MODEL_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) -fsanitize=fuzzer $< $(B)/test/fuzz/files.o $(MODEL_OBJ) $(LIB) $(LDLIBS_) -o $@

$(B)/test/fuzz/replay_%: $(B)/test/fuzz/fuzz_%.o $(B)/test/fuzz/replay.o $(B)/test/fuzz/files.o $(MODEL_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $(filter %.o,$^) $(LIB) $(LDLIBS_) -o $@

$(TOOL_BIN): $(B)/%: $(B)/%.o $(MODEL_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $< $(MODEL_OBJ) $(LIB) $(LDLIBS_) -o $@

$(BENCH_BIN): $(B)/%: $(B)/%.o $(MODEL_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $< $(MODEL_OBJ) $(LIB) $(LDLIBS_) -o $@

# Kernels read memory through types of their own, use pragmas of nvcc, and test the same unchanging index twice.
EMULATED_CXX = $(CXX) -std=c++17 $(HOST) -Wno-unknown-pragmas -Wno-uninitialized -Wno-maybe-uninitialized \
               -fno-strict-aliasing -DEMULATED -Itest/emulate $(DEFINES) $(INCLUDES) -MMD -MP
$(B)/emulate/%.o: src/cuda/kernels/%.cu $(B)/flags
	$(call say,CXX,$< (emulated))
	@mkdir -p $(@D)
	$(Q)$(EMULATED_CXX) -x c++ -c $< -o $@

$(B)/emulate/%.o: test/emulate/%.cc $(B)/flags
	$(call say,CXX,$<)
	@mkdir -p $(@D)
	$(Q)$(EMULATED_CXX) -c $< -o $@

$(B)/emulate/test_cuda_%.o: test/test_%.c $(B)/flags
	$(call say,CC,$< (emulated kernels))
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_) -Itest -Dbackend_cpu_create=backend_emulated_create -MMD -MP -c $< -o $@

$(B)/emulate/test_cuda_kernels.o: test/emulate/test_cuda_kernels.c $(B)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_) -Itest/emulate -Itest -MMD -MP -c $< -o $@

$(EMULATED_BIN): %: %.o $(EMULATED_OBJ) $(LIB)
	$(call say,LD,$@)
	$(Q)$(CXX) $(LDFLAGS_) $< $(EMULATED_OBJ) $(LIB) -lcmocka $(LDLIBS_) -o $@

$(B)/gpu/managed.o: test/gpu/managed.c $(B)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_) -I$(CUDA_HOME)/include -MMD -MP -c $< -o $@

$(B)/gpu/test_gpu_%.o: test/test_%.c $(B)/flags
	$(call say,CC,$< (on a GPU))
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_) -Itest -Dbackend_cpu_create=managed_backend_create -Dmalloc=managed_malloc \
	  -Dcalloc=managed_calloc -Dfree=managed_free -MMD -MP -c $< -o $@

$(B)/gpu/test_gpu_%: $(B)/gpu/test_gpu_%.o $(B)/gpu/managed.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $< $(B)/gpu/managed.o $(LIB) -lcmocka $(LDLIBS_) -o $@

.SECONDARY:
-include $(shell find $(B) -name '*.d' 2>/dev/null)
