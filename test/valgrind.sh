#!/usr/bin/env bash
# Runs both trainers under memcheck with one rank: two steps with validation and a checkpoint, and a resume. The
# argument is the folder of programs built for a processor that Valgrind supports (make valgrind).
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

check() {
    local family=$1
    shift
    ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2 valgrind --trace-children=yes --error-exitcode=9 --leak-check=full \
        --errors-for-leak-kinds=definite --show-leak-kinds=definite \
        "$programs/train_$family" -c "configs/${family}_tiny.yaml" -o parallel.pipeline=1 -o schedule.bpipe=off \
        -o schedule.micro_batch=1 -o train.global_batch=2 -o model.hidden=32 -o model.layers=2 -o model.ffn=64 \
        -o model.seq_len=16 -o data.val_every=1 -o data.val_batches=1 -o "checkpoint.dir=$folder/$family" \
        -o checkpoint.every=1 -o "log.metrics=$folder/$family.jsonl" -o hardware.peak_tflops=1 "$@" >"$folder/said" 2>&1 || true
    # The program restarts itself. A summary in the output proves that Valgrind followed it.
    if ! grep -q 'ERROR SUMMARY: 0 errors' "$folder/said"; then
        cat "$folder/said"
        echo "valgrind: train_$family $*: failed"
        exit 1
    fi
    echo "valgrind: train_$family $*: clean"
}

for family in llama gpt; do
    check $family -o train.steps=2
    check $family -o train.steps=3 --resume "$folder/$family" --trace "$folder/trace.json"
    check $family -o train.steps=1 -o train.precision=bf16 -o attention.mode=recompute -o checkpoint.dir= -o checkpoint.every=0
done
