# Builds the trainers and the tiny data set. `make help` lists the targets and the switches.
# make/ contains everything else: variants, detection of tools, GPUs, tests, fuzzing, linters, packages.
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
.SECONDARY:
.DEFAULT_GOAL := all

# ---- switches -------------------------------------------------------------------------------------------------------
V       ?= 0
VARIANT ?= release
BUILD   ?= build
DNNL    ?= 1
MPI     ?= 1
OPENMP  ?= 1
MARCH   ?= native
T       ?=
MPICC   ?= mpicc
ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
# Debian's PyTorch, NumPy and pytest belong to the system's Python, even if another Python precedes it in PATH.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
comma := ,
empty :=
space := $(empty) $(empty)

include make/variants.mk
B := $(BUILD)/$(VARIANT)$(if $(filter tsan fuzz,$(VARIANT)),,$(if $(filter 0,$(DNNL)),-nodnnl)$(if $(filter 0,$(MPI)),-nompi))
include make/found.mk

# ---- flags ----------------------------------------------------------------------------------------------------------
# No fast-math and no contraction: where two loops must agree to the bit, the compiler must not fuse operations in one.
MATH     := -march=$(MARCH) -ffp-contract=off -fno-math-errno
DEFINES  := -D_GNU_SOURCE $(if $(HAVE_DNNL),-DHAVE_DNNL) $(if $(HAVE_MPI),-DHAVE_MPI)
INCLUDES := -I. -Isrc
# Some variables are used only by an OpenMP pragma.
SERIAL   := -Wno-unknown-pragmas -Wno-unused-variable -Wno-unused-parameter
HOST     := $(OPT) $(MATH) $(WARN) $(if $(HAVE_OPENMP),-fopenmp,$(SERIAL))
CFLAGS_  := -std=c11 $(HOST) $(DEFINES) $(INCLUDES) $(if $(HAVE_MPI),$(MPI_CFLAGS)) $(CFLAGS)
LDFLAGS_ := $(OPT) $(if $(HAVE_OPENMP),-fopenmp) $(LDFLAGS)
LDLIBS_  := $(if $(HAVE_DNNL),-ldnnl) $(if $(HAVE_MPI),$(MPI_LIBS)) -lyaml -lm -lpthread -ldl $(LDLIBS)

# ---- short lines, or with V=1 the whole command -----------------------------------------------------------------------
ifeq ($(V),1)
Q :=
say = @:
else
Q := @
say = @printf '  %-4s %s\n' "$(1)" "$(2)"
endif

# ---- the trainers -----------------------------------------------------------------------------------------------------
TRAINERS  := $(basename $(wildcard train_*.cu))
LIB_SRC   := $(wildcard bpipe.c src/*/*.c)
LIB_OBJ   := $(LIB_SRC:%.c=$(B)/%.o)
LIB       := $(B)/libtrainer.a

.PHONY: all programs gpu data tiny-data docs clean FORCE
all: programs gpu tiny-data

# ./ contains the programs of the last build. They are replaced, not overwritten, so that running programs continue.
place = @for file in $(1); do cmp -s $(B)/$$file $$file || \
  { cp $(B)/$$file .$$file.new && mv .$$file.new $$file && printf '  %-4s %s\n' '=>' ./$$file; }; done
places := $(filter build-,$(BUILD)-$(findstring san,$(VARIANT)))
programs: $(TRAINERS:%=$(B)/%)
	$(if $(places),$(call place,$(TRAINERS)),@:)

# The GPU code, which takes longer to compile than everything else; skipped without nvcc.
gpu: $(if $(CUDA_SRC),$(B)/libtrainer_cuda.so)
	$(if $(CUDA_SRC),$(if $(places),$(call place,libtrainer_cuda.so),@:),@:)

include make/cuda.mk

# Rewritten only when the flags change. All objects depend on it, so that other flags cause a rebuild.
$(B)/flags: FORCE | found
	@mkdir -p $(@D)
	@echo '$(CC) $(CFLAGS_) | $(LDFLAGS_) $(LDLIBS_)' | cmp -s - $@ || \
	  echo '$(CC) $(CFLAGS_) | $(LDFLAGS_) $(LDLIBS_)' > $@

$(B)/members: FORCE
	@mkdir -p $(@D)
	@echo '$(LIB_OBJ)' | cmp -s - $@ || echo '$(LIB_OBJ)' > $@

$(B)/%.o: %.c $(B)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_) -MMD -MP -c $< -o $@

$(LIB): $(LIB_OBJ) $(B)/members
	$(call say,AR,$@)
	@rm -f $@
	$(Q)ar rcs $@ $(LIB_OBJ)

# A checksum of the sources: a trainer starts dry runs only on virtual GPUs of its own sources (src/run/trainer.c).
SOURCES := $(firstword $(shell cat $(sort $(LIB_SRC) $(wildcard *.h *.cu src/*/*.[hc]* src/*/*/*.cu*)) | cksum))
$(B)/sources: FORCE
	@mkdir -p $(@D)
	@echo '$(SOURCES)' | cmp -s - $@ || echo '$(SOURCES)' > $@
$(B)/src/run/trainer.o: private CFLAGS_ += -DSOURCES='"$(SOURCES)"'
$(B)/src/run/trainer.o: $(B)/sources

# The models' .cu files contain no kernels: they are C.
$(B)/%.o: %.cu $(B)/flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) -x c $(CFLAGS_) -MMD -MP -c $< -o $@

$(TRAINERS:%=$(B)/%): $(B)/%: $(B)/%.o $(LIB)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_) $< $(LIB) $(LDLIBS_) -o $@

# ---- data, pages, and everything else -----------------------------------------------------------------------------------
data:
	$(Q)$(PYTHON) scripts/prepare_data.py --bible -o data

# The programs are useful without the text, so make continues without it.
tiny-data:
	@ls data/bible_train_*.bin >/dev/null 2>&1 || $(PYTHON) scripts/prepare_data.py --bible -o data || \
	  echo 'no data set yet: run scripts/install_deps.sh and then make data, or scripts/prepare_data.py FILE...'

docs: programs
	$(call say,DOC,docs/configuration.md)
	$(Q)$(B)/train_llama --help-config --json | $(PYTHON) make/faces.py markdown > docs/configuration.md

clean:
	rm -rf $(BUILD) $(TRAINERS) libtrainer_cuda.so

include make/test.mk make/virtual.mk make/fuzz.mk make/lint.mk make/package.mk make/explore.mk make/help.mk
-include $(shell find $(B) -name '*.d' 2>/dev/null)
