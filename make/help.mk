# make help: the targets and the switches.
.PHONY: help
help:
	@echo 'make            the trainers, the GPU code where nvcc is, and the tiny data set where it is absent'
	@echo 'make programs   the trainers alone;   make gpu   the GPU code alone'
	@echo 'make test       every C unit test and every pytest; the last line is "N passed, N failed"'
	@echo 'make unit       the C unit tests alone; T=dataset runs test/data/test_dataset.c alone'
	@echo 'make asan       the C unit tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make tsan       the C unit tests under ThreadSanitizer (portable form, without OpenMP)'
	@echo 'make fuzz       made-up input for everything that is read; FUZZ_SECONDS=60 FUZZ_RUNS=1000000 T=json (clang)'
	@echo 'make valgrind   both trainers under memcheck, one rank, some minutes'
	@echo 'make fuzz-replay  the corpus of make fuzz alone'
	@echo 'make test-cuda  the tests that need a GPU'
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
