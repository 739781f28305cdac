# make explore: the planner, the search, the schedules and their proof in one page, build/explore/index.html. emscripten
# compiles the program's sources to WebAssembly; scripts/install_deps.sh --explore installs the tools for this.
EXPLORE      := $(BUILD)/explore
EMCC         ?= emcc
# If PATH names another node first, Debian's emscripten must be told where Debian's node has its modules.
EXPLORE_ENV  := NODE_PATH=/usr/share/nodejs
EXPLORE_YAML := $(wildcard .deps/libyaml/yaml.h)
EXPLORE_SRC  := bpipe.c $(filter-out $(addprefix src/,ranks/supervisor.c ranks/coordinator.c ranks/connection.c device/cuda_load.c),$(wildcard \
                $(foreach dir,base schedule config backend comm ranks device model data engine checkpoint plan search,src/$(dir)/*.c)))
EXPLORE_OBJ  := $(EXPLORE_SRC:%.c=$(EXPLORE)/%.o) $(TRAINERS:%=$(EXPLORE)/%.o) \
                $(foreach part,api reader scanner parser loader,$(EXPLORE)/yaml/$(part).o)
EXPLORE_OPT  := -O3 -flto -mbulk-memory
EXPLORE_CC   := $(EXPLORE_ENV) $(EMCC) -std=c11 $(EXPLORE_OPT) -D_GNU_SOURCE $(INCLUDES) -Iexplore -I$(dir $(EXPLORE_YAML)) \
                -include explore/browser.h
EXPLORE_LINK := -sSTRICT=0 -sALLOW_MEMORY_GROWTH -sTOTAL_STACK=4MB -sFORCE_FILESYSTEM -sENVIRONMENT=web,worker \
                -sMODULARIZE -sEXPORT_NAME=createProgram -sINVOKE_RUN=0 -sEXPORTED_FUNCTIONS=_explore,_malloc,_free \
                -sEXPORTED_RUNTIME_METHODS=FS,stringToUTF8,lengthBytesUTF8,setValue

.PHONY: explore explore-missing
explore: $(if $(and $(EXPLORE_YAML),$(shell command -v $(EMCC))),$(EXPLORE)/index.html,explore-missing)
explore-missing:
	@echo 'make explore: emscripten or the sources of libyaml are missing; run scripts/install_deps.sh --explore' >&2; exit 1

$(EXPLORE)/%.o: %.c $(B)/flags
	$(call say,EMCC,$<)
	@mkdir -p $(@D)
	$(Q)$(EXPLORE_CC) -MMD -MP -c $< -o $@

# Each model brings its own main, which the page does not need.
$(EXPLORE)/train_%.o: train_%.cu $(B)/flags
	$(call say,EMCC,$<)
	@mkdir -p $(@D)
	$(Q)$(EXPLORE_CC) -x c -Dmain=main_$* -MMD -MP -c $< -o $@

$(EXPLORE)/yaml/%.o: $(EXPLORE_YAML)
	$(call say,EMCC,$*.c of libyaml)
	@mkdir -p $(@D)
	$(Q)$(EXPLORE_CC) -c $(dir $<)$*.c -o $@

$(EXPLORE)/program.js: $(EXPLORE)/explore/explore.o $(EXPLORE_OBJ)
	$(call say,EMLD,$@)
	@rm -f $(EXPLORE)/program.a
	$(Q)$(EXPLORE_ENV) emar rcs $(EXPLORE)/program.a $(EXPLORE_OBJ)
	$(Q)$(EXPLORE_ENV) $(EMCC) $(EXPLORE_OPT) $< $(EXPLORE)/program.a $(EXPLORE_LINK) -o $@

$(EXPLORE)/index.html: explore/build.py $(EXPLORE)/program.js $(wildcard explore/page.* explore/*.js scripts/draw.js configs/*.yaml studies/atlas.json docs/img/atlas_*.svg)
	$(call say,PAGE,$@)
	$(Q)$(PYTHON) explore/build.py $(EXPLORE)/program.js $(EXPLORE)/program.wasm -o $@

-include $(shell find $(EXPLORE) -name '*.d' 2>/dev/null)
