#!/usr/bin/env bash
# Draws the README's two pictures anew: GPT-3 96B, micro-batch size 2, on 32 GPUs of 80 GiB (76 beside the reserve), as planned. Needs no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
plans=$(mktemp -d)
trap 'rm -rf "$plans"' EXIT
plan=(./train_gpt -c configs/gpt3_96b.yaml -o schedule.micro_batch=2 -o schedule.bpipe=on -o attention.mode=flash \
      -o schedule.split_backward=off --plan --json)
"${plan[@]}" >"$plans/plan.json"
# Twelve microbatches in place of 64 fit on a page.
"${plan[@]}" -o train.global_batch=24 --trace "$plans/trace.json" >/dev/null
scripts/plot.py memory "$plans/plan.json" --limit 76 -o docs/img/memory.svg
scripts/plot.py timeline "$plans/trace.json" -o docs/img/timeline.svg
