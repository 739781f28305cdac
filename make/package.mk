# Installation and packaging: make install, uninstall, dist.
NAME    := bpipe-trainer
version_is = $(shell sed -n 's/^#define $(1)  *"\(.*\)"/\1/p' src/base/version.h)
VERSION := $(call version_is,VERSION)
VERSION_DATE := $(call version_is,VERSION_DATE)
PREFIX  ?= /usr/local
PLACE   := $(DESTDIR)$(PREFIX)
# install_deps.sh and try.py are useless without the source tree.
SCRIPTS := $(shell find scripts -type f ! -name install_deps.sh ! -name try.py ! -path '*__pycache__*')
CONFIGS := $(wildcard configs/*.yaml configs/*/*.yaml)
PAGES   := $(wildcard *.md LICENSE docs/*.md docs/img/*.svg docs/img/*.png)

.PHONY: install uninstall dist
install: programs gpu
	$(Q)install -d $(PLACE)/bin $(PLACE)/share/man/man1 $(PLACE)/share/bash-completion/completions \
	  $(PLACE)/share/zsh/site-functions $(PLACE)/share/$(NAME) $(PLACE)/share/doc/$(NAME)
	$(Q)for program in $(TRAINERS); do \
	  install -m 755 $(B)/$$program $(PLACE)/bin/$$program && \
	  for face in man:man/man1/$$program.1 bash:bash-completion/completions/$$program \
	    zsh:zsh/site-functions/_$$program; do \
	    $(B)/$$program --help-config --json | $(PYTHON) make/faces.py $${face%%:*} > $(PLACE)/share/$${face#*:} || exit 1; \
	  done || exit 1; done
	$(if $(CUDA_SRC),$(Q)install -D -m 755 $(CUDA_LIB) $(PLACE)/lib/$(NAME)/$(notdir $(CUDA_LIB)))
	$(Q)cp --parents --preserve=mode $(CONFIGS) $(SCRIPTS) $(PLACE)/share/$(NAME)
	$(Q)cp --parents --preserve=mode $(PAGES) $(PLACE)/share/doc/$(NAME)
	@echo 'installed $(TRAINERS) under $(PLACE); configurations and scripts are in $(PLACE)/share/$(NAME)'

uninstall:
	$(Q)for program in $(TRAINERS); do \
	  rm -f $(PLACE)/bin/$$program $(PLACE)/share/man/man1/$$program.1 \
	  $(PLACE)/share/bash-completion/completions/$$program $(PLACE)/share/zsh/site-functions/_$$program; done
	$(Q)rm -rf $(PLACE)/lib/$(NAME) $(PLACE)/share/$(NAME) $(PLACE)/share/doc/$(NAME)

# Every tracked file in its current state; equal files give equal bytes.
TARBALL := $(BUILD)/$(NAME)-$(VERSION).tar.gz
dist:
	@git rev-parse --is-inside-work-tree >/dev/null 2>&1 || \
	  { echo 'make dist packs what git knows, and this is not a git checkout' >&2; exit 1; }
	@mkdir -p $(BUILD)
	$(Q)git ls-files -z | tar --create --null --files-from=- --transform='s,^,$(NAME)-$(VERSION)/,' --sort=name \
	  --owner=0 --group=0 --numeric-owner --mode=u+rw,go=rX --mtime='$(VERSION_DATE)' | gzip -n -9 > $(TARBALL)
	@echo '$(TARBALL)'
