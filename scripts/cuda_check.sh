#!/usr/bin/env bash
# Everything there is to know about the CUDA build on a machine with a GPU, in one go and with nothing to download:
# build (or what was packed), tests, runs against the CPU, figures. Ends with a table of what held.
#
#   scripts/cuda_check.sh               on a machine with the toolkit and what scripts/install_deps.sh installs
#   scripts/cuda_check.sh pack DIR      on any machine with nvcc: puts this script, programs, tests and the
#                                       libraries they need except CUDA's into DIR, for a bare machine
#   DIR/scripts/cuda_check.sh packed DIR    on the bare machine: the same checks with what is in DIR
#
# A bare machine needs: an NVIDIA driver, CUDA's runtime, cuBLASLt, NCCL and cuDNN 9 (the toolkit's folder, or the
# Python wheels nvidia-*), glibc as new as the packing machine's, bash and python3. LOGS names the folder for whole logs.
set -uo pipefail
unset MAKEFLAGS MAKELEVEL # of a make that calls this script
folder=${2:+$(realpath -m "$2")} # as seen from where the user is
cd "$(dirname "$0")/.." || exit 1
logs=${LOGS:-out/cuda_check}
if [ "${1:-}" = pack ]; then BUILD=${BUILD:-build/pack}; fi # for another processor: not what make has built here
build=${BUILD:-build}/release
make_cuda() {
    if ! make found | grep '✓ nvcc' >/dev/null; then
        echo 'cuda_check: make finds no nvcc with cuBLASLt and NCCL (make found says what it finds)' >&2
        exit 1
    fi
    make BUILD="${BUILD:-build}" "$@" || exit 1
}
gpu_tests=(norm pointwise embedding cross_entropy adamw)
results=()

headline() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

# check NAME COMMAND...: its output goes to a log, of which the end is shown; its verdict into the table.
check() {
    local name=$1 verdict=ok
    shift
    headline "$name"
    "$@" >"$logs/${name// /_}.log" 2>&1 || verdict="FAILED ($?)"
    if [ "$verdict" = ok ] && grep -qE ': skipped$|^skipped |SKIPPED +\] [0-9]+ test' "$logs/${name// /_}.log"; then
        verdict=skipped
    fi
    tail -n "${SHOW:-12}" "$logs/${name// /_}.log"
    results+=("$(printf '%-44s %s' "$name" "$verdict")")
}

# ---- packing

# Shared libraries of a program that are neither glibc's nor CUDA's.
libraries() {
    ldd "$1" | awk '$3 ~ /^\// { print $3 }' |
        grep -vE '/(libc|libm|libgcc_s|libstdc\+\+|libpthread|libdl|librt|ld-linux[^/]*|libcu[^/]*|libnccl|libcudnn[^/]*|libnv[^/]*)\.so' || true
}

# Open MPI loads parts of itself by name, which no list of libraries shows.
pack() {
    local to=$1 file openmpi
    # The bare machine's processor may be another one.
    make_cuda MARCH=x86-64-v3 programs gpu "$build/test/test_cuda" "$build/test/api_rules" "${gpu_tests[@]/#/$build/gpu/test_gpu_}"
    mkdir -p "$to/lib" "$to/bin" "$to/openmpi"
    cp "$build"/libtrainer_cuda.so "$build"/train_* "$build/test/test_cuda" "$build/test/api_rules" \
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
    mkdir -p "$to/scripts"
    cp scripts/cuda_check.sh "$to/scripts/"
    du -sh "$to"
}

# ---- what a bare machine has

# The toolkit's libraries, or those of Python's wheels.
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
    programs=$from/bin tests=$from/bin gpu=$from/bin
}

use_built() {
    make_cuda programs gpu "$build/test/test_cuda" "$build/test/api_rules" "${gpu_tests[@]/#/$build/gpu/test_gpu_}" tiny-data
    programs=$build tests=$build/test gpu=$build/gpu
}

# ---- runs

# train NAME DEVICE STEPS OPTIONS...: a short run that writes its metrics to $logs/NAME.jsonl.
train() {
    local name=$1 device=$2 steps=$3
    shift 3
    rm -f "$logs/$name.jsonl"
    "$programs/train_llama" -c configs/llama_tiny.yaml -o "hardware.device=$device" -o "train.steps=$steps" \
        -o checkpoint.every=0 -o data.val_every=0 -o "log.metrics=$logs/$name.jsonl" "$@"
}

one=(-o parallel.pipeline=1 -o schedule.bpipe=off)

# compare NAME NAME BOUND: losses and norms of two runs, relative.
compare() {
    python3 - "$logs/$1.jsonl" "$logs/$2.jsonl" "$3" <<'END'
import json, sys
def steps(path):
    return [r for r in map(json.loads, open(path)) if r["type"] == "step"]
a, b, bound = steps(sys.argv[1]), steps(sys.argv[2]), float(sys.argv[3])
worst = max(abs(x[k] - y[k]) / abs(y[k]) for x, y in zip(a, b) for k in ("loss", "grad_norm"))
print(f"{len(a)} steps, largest relative difference {worst:.3g}, allowed {bound:g}")
sys.exit(len(a) != len(b) or not a or worst > bound)
END
}

fp32_like_cpu() {
    train cpu cpu 10 "${one[@]}" && train gpu cuda 10 "${one[@]}" && compare gpu cpu 1e-4
}

bf16_close() {
    train gpu_bf16 cuda 10 "${one[@]}" -o train.precision=bf16 && compare gpu_bf16 cpu 5e-2
}

reruns_equal() {
    train gpu_again cuda 10 "${one[@]}" -o train.precision=bf16 && compare gpu_again gpu_bf16 0
}

modes_agree() {
    local mode softmax
    for mode in none recompute flash; do
        for softmax in fused unfused; do
            train "gpu_${mode}_$softmax" cuda 5 "${one[@]}" -o train.precision=bf16 -o "attention.mode=$mode" \
                -o "attention.softmax=$softmax" && compare "gpu_${mode}_$softmax" gpu_none_fused 2e-2 || return 1
        done
    done
}

# Four stages on one GPU, bundles lent through CUDA-IPC: the same bits as without BPipe and as with eviction to the host.
bpipe_on_one_gpu() {
    local share=(-o hardware.share_gpu=true)
    train p4_plain cuda 5 "${share[@]}" -o schedule.bpipe=off && train p4_bpipe cuda 5 "${share[@]}" &&
        train p4_host cuda 5 "${share[@]}" -o schedule.evict_to=host && compare p4_bpipe p4_plain 0 &&
        compare p4_host p4_plain 0 && train p4_t2 cuda 5 "${share[@]}" -o parallel.tensor=2 &&
        compare p4_t2 p4_plain 1e-4
}

# Ranks with a GPU each: messages by copy engines, evictions between GPUs, sums and gathers by NCCL.
several_gpus() {
    local count
    count=$(nvidia-smi -L | grep -c '^GPU')
    if [ "$count" -lt 2 ]; then echo 'one GPU is here: skipped'; return 0; fi
    train alone cuda 5 "${one[@]}" &&
        train stages cuda 5 -o parallel.pipeline=2 -o schedule.bpipe=off && compare stages alone 0 &&
        train tensor cuda 5 "${one[@]}" -o parallel.tensor=2 && compare tensor alone 1e-4 &&
        train data cuda 5 "${one[@]}" -o parallel.data=2 && compare data alone 1e-4 || return 1
    if [ "$count" -ge 4 ]; then train bpipe cuda 5 && compare bpipe alone 0; fi
}

gpu_family() {
    local test
    for test in "$tests/test_cuda" "${gpu_tests[@]/#/$gpu/test_gpu_}"; do
        echo "-- $test"
        "$test" || return 1
    done
}

sanitized() {
    command -v compute-sanitizer >/dev/null || { echo 'compute-sanitizer is not here: skipped'; return 0; }
    timeout 150 compute-sanitizer --error-exitcode 9 "$programs/train_llama" -c configs/llama_tiny.yaml \
        -o hardware.device=cuda -o train.steps=1 -o checkpoint.every=0 -o data.val_every=0 -o log.metrics= "${one[@]}"
}

# One full-size stage, as many microbatches as a step has: F, B, MFU, memory.
stage() {
    local program=$1 config=$2
    shift 2
    timeout 240 "$programs/$program" -c "configs/$config" --emulate-stage 1 "$@"
}

main() {
    if "$tests/api_rules" 2>&1 | grep -q 'there is no GPU here'; then
        echo 'cuda_check: CUDA finds no GPU here, so nothing was checked; run this where nvidia-smi lists one' >&2
        exit 1
    fi
    mkdir -p "$logs"
    check 'device' nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
    check 'rules that the virtual GPU imitates' "$tests/api_rules"
    check 'operations against the CPU' gpu_family
    check 'fp32 losses like the CPU, 1e-4' fp32_like_cpu
    check 'bf16 losses near the CPU' bf16_close
    check 'reruns give the same bits' reruns_equal
    check 'attention modes agree' modes_agree
    check 'BPipe of four ranks on one GPU' bpipe_on_one_gpu
    check 'ranks with a GPU each' several_gpus
    if [ "${QUICK:-0}" = 0 ]; then
        check 'compute-sanitizer' sanitized
        check 'LLaMA 65B, one stage, b=2, flash' stage train_llama llama65b.yaml -o schedule.micro_batch=2
        check 'GPT-3 96B, one stage, b=1, flash' stage train_gpt gpt3_96b.yaml
    fi
    headline 'what held'
    printf '%s\n' "${results[@]}"
    ! printf '%s\n' "${results[@]}" | grep -q FAILED
}

case "${1:-}" in
pack) pack "${folder:?pack needs a folder}" ;;
packed) use_packed "${folder:?packed needs a folder}" && main ;;
'') use_built && main ;;
*) echo "usage: $0 [pack DIR | packed DIR]" >&2 && exit 2 ;;
esac
