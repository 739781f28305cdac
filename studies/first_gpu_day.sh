#!/usr/bin/env bash
# Builds the GPU code and runs every check and measurement of it: one command for the first day on a machine with GPUs.
# studies/first_gpu_day.py has the rows and the options.
#
#   studies/first_gpu_day.sh [OPTION]...    with the toolkit and the packages of scripts/install_deps.sh
#   studies/first_gpu_day.sh pack DIR       on any machine with nvcc: puts this script, programs, tests and the
#                                           libraries they need except CUDA's into DIR, for a bare machine
#   DIR/studies/first_gpu_day.sh packed DIR [OPTION]...    on the bare machine: the same from the files in DIR
#
# A bare machine needs: an NVIDIA driver, CUDA's runtime, cuBLASLt, NCCL and cuDNN 9 (the toolkit's folder, or the
# Python wheels nvidia-*), glibc as new as the packing machine's, bash and python3.
set -uo pipefail
# Help needs no build.
for word in "$@"; do
    case "$word" in -h | --help) exec python3 "$(dirname "$0")/first_gpu_day.py" --help ;; esac
done
unset MAKEFLAGS MAKELEVEL # set by a make that calls this script
folder=
case "${1:-}" in pack | packed) folder=${2:+$(realpath -m "$2")} ;; esac # relative to the user's folder
cd "$(dirname "$0")/.." || exit 1
if [ "${1:-}" = pack ]; then BUILD=${BUILD:-build/pack}; fi # may target another processor than the normal build
build=${BUILD:-build}/release
make_cuda() {
    if ! make found | grep '✓ nvcc' >/dev/null; then
        echo 'first_gpu_day: make finds no nvcc with cuBLASLt and NCCL (make found says what it finds)' >&2
        exit 1
    fi
    make -j"$(nproc)" BUILD="${BUILD:-build}" "$@" || exit 1
}
gpu_tests=(norm pointwise embedding cross_entropy adamw)
test_programs=(test_cuda api_rules bench_gpu)

# ---- packing

# Shared libraries of a program that are neither glibc's nor CUDA's.
libraries() {
    ldd "$1" | awk '$3 ~ /^\// { print $3 }' |
        grep -vE '/(libc|libm|libgcc_s|libstdc\+\+|libpthread|libdl|librt|ld-linux[^/]*|libcu[^/]*|libnccl|libcudnn[^/]*|libnv[^/]*)\.so' || true
}

# Open MPI loads some of its parts by name, so no list of libraries shows them.
pack() {
    local to=$1 file openmpi
    # The bare machine may have another processor.
    make_cuda MARCH=x86-64-v3 programs gpu "${test_programs[@]/#/$build/test/}" "${gpu_tests[@]/#/$build/gpu/test_gpu_}"
    mkdir -p "$to/lib" "$to/bin" "$to/openmpi"
    cp "$build"/libtrainer_cuda.so "$build"/train_* "${test_programs[@]/#/$build/test/}" \
        "${gpu_tests[@]/#/$build/gpu/test_gpu_}" "$to/bin/"
    rm -f "$to"/bin/*.o "$to"/bin/*.d
    strip "$to"/bin/*
    if command -v mpirun >/dev/null; then
        cp -L "$(command -v mpirun)" "$to/bin/mpirun"
        cp -L "$(command -v orted)" "$to/bin/orted" 2>/dev/null
        openmpi=$(ldd "$build/train_llama" | awk '$1 ~ /^libmpi\.so/ { print $3 }')
        openmpi=$(find "$(dirname "$(readlink -f "$openmpi")")" -name mca_pml_ob1.so -type f | head -1)
        if [ -n "$openmpi" ]; then cp -rL "$(dirname "$openmpi")" "$to/openmpi/plugins"; fi
        cp -rL /usr/share/openmpi "$to/openmpi/share" 2>/dev/null
    fi
    for file in "$to"/bin/* "$to"/openmpi/plugins/*.so; do libraries "$file"; done | sort -u |
        while read -r file; do cp -L "$file" "$to/lib/"; done
    cp -rL data configs "$to/"
    mkdir -p "$to/studies" "$to/scripts"
    cp scripts/verify.py scripts/run_files.py "$to/scripts/"
    cp studies/first_gpu_day* studies/side_by_side.py studies/curve.py studies/torch_side.py "$to/studies/"
    du -sh "$to"
}

# ---- libraries of a bare machine

# Finds the toolkit's libraries, or those of Python's wheels.
cuda_paths() {
    local place
    for place in /usr/local/cuda/lib64 "$(python3 -c 'import nvidia, os; print(list(nvidia.__path__)[0])' 2>/dev/null)"; do
        if [ -n "$place" ] && [ -d "$place" ]; then
            find "$place" \( -name 'libcublasLt.so*' -o -name 'libcudart.so*' -o -name 'libnccl.so*' -o -name 'libcudnn.so*' \
                -o -name 'libnvrtc.so*' \) -printf '%h\n'
        fi
    done | sort -u | paste -sd:
}

use_packed() {
    local from
    from=$(cd "$1" && pwd)
    LD_LIBRARY_PATH="$from/lib:$(cuda_paths):${LD_LIBRARY_PATH:-}"
    export LD_LIBRARY_PATH
    if [ -d "$from/openmpi/plugins" ]; then
        export OPAL_PREFIX="$from/openmpi" OMPI_MCA_mca_base_component_path="$from/openmpi/plugins"
        export OPAL_PKGDATADIR="$from/openmpi/share" OPAL_BINDIR="$from/bin"
        export PATH="$from/bin:$PATH"
    fi
    export PROGRAMS=$from/bin TESTS=$from/bin KERNELS=$from/bin
}

use_built() {
    make_cuda programs gpu "${test_programs[@]/#/$build/test/}" "${gpu_tests[@]/#/$build/gpu/test_gpu_}" tiny-data
    export PROGRAMS=$build TESTS=$build/test KERNELS=$build/gpu
}

case "${1:-}" in
pack) pack "${folder:?pack needs a folder}" ;;
packed)
    use_packed "${folder:?packed needs a folder}"
    exec python3 studies/first_gpu_day.py "${@:3}"
    ;;
*)
    if [ -z "${PROGRAMS:-}" ]; then use_built; fi
    exec python3 studies/first_gpu_day.py "$@"
    ;;
esac
