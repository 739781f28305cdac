# clang-format of the sources, and the linters; linters that are not installed are named.
FORMATTED := $(wildcard *.c *.h *.cu src/*/*.[ch] src/cuda/*.cu src/cuda/*.cpp src/cuda/*.cuh src/cuda/kernels/*) \
             $(wildcard test/*/*.[ch] test/virtual/*.cc test/virtual/include/*.h)

.PHONY: format lint lint-format lint-tidy lint-cppcheck lint-shell
format:
	$(Q)clang-format -i $(FORMATTED)

# Disabled checks misread this code: for example, they need to know the return value of error_set, or warn about
# products of small constants.
TIDY := bugprone-* clang-analyzer-unix.* -bugprone-easily-swappable-parameters -bugprone-narrowing-conversions \
        -bugprone-reserved-identifier -bugprone-sizeof-expression -bugprone-macro-parentheses \
        -bugprone-misplaced-widening-cast -bugprone-not-null-terminated-result -bugprone-integer-division \
        -bugprone-implicit-widening-of-multiplication-result -bugprone-branch-clone \
        -bugprone-signed-char-misuse
lint: lint-format lint-tidy lint-cppcheck lint-shell
lint-format:
	$(Q)clang-format --dry-run -Werror $(FORMATTED) && echo '✓ clang-format'
lint-tidy:
	$(Q)if command -v clang-tidy >/dev/null; then clang-tidy --quiet --warnings-as-errors='*' \
	  --checks='-*$(subst $(space),,$(TIDY:%=$(comma)%))' $(LIB_SRC) -- -std=c11 $(DEFINES) $(INCLUDES) $(MPI_CFLAGS) \
	  2>/dev/null && echo '✓ clang-tidy'; else echo '✗ clang-tidy: not installed (scripts/install_deps.sh --dev)'; fi
lint-cppcheck:
	$(Q)if command -v cppcheck >/dev/null; then cppcheck --quiet --std=c11 --enable=warning,portability \
	  --inline-suppr --suppress=uninitvar --suppress=legacyUninitvar --suppress=memleak \
	  --suppress=ctuuninitvar --error-exitcode=1 \
	  $(DEFINES) $(INCLUDES) $(LIB_SRC) && echo '✓ cppcheck'; \
	  else echo '✗ cppcheck: not installed (scripts/install_deps.sh --dev)'; fi
lint-shell:
	$(Q)if command -v shellcheck >/dev/null; then shellcheck $(filter-out %.py,$(wildcard scripts/*.sh scripts/slurm/*)) .ci/run && echo '✓ shellcheck'; \
	  else echo '✗ shellcheck: not installed (scripts/install_deps.sh --dev)'; fi
