#!/usr/bin/env bash
# Draws the picture of docs/schedules.md anew: one step of every schedule on four stages, as planned. Needs no GPU.
set -euo pipefail
cd "$(dirname "$0")/../.."
traces=$(mktemp -d)
trap 'rm -rf "$traces"' EXIT
plan=(./train_llama -c configs/llama65b.yaml --plan --json -o parallel.pipeline=4 -o parallel.tensor=1 -o parallel.sequence=false
      -o model.layers=16 -o model.vocab=1 -o train.global_batch=8 -o schedule.split_backward=auto -o schedule.bpipe=off)
pictures=()
trace() { # NAME KEYS...: a step of the schedule with these keys, as the picture NAME
    local name=$1 keys=()
    shift
    for key in "$@"; do keys+=(-o "schedule.$key"); done
    "${plan[@]}" "${keys[@]}" --trace "$traces/$name.json" >/dev/null 2>&1
    pictures+=("$traces/$name.json")
}
trace gpipe name=gpipe split_backward=off
trace 1f1b name=1f1b split_backward=off
trace "1f1b, split backwards" name=1f1b split_backward=on
trace "1f1b, split backwards, BPipe" name=1f1b split_backward=on bpipe=on
trace "zb-d (ZB-H1)" name=zb-d
trace interleaved name=interleaved split_backward=off
trace gis name=gis
trace "gis, group half, BPipe" name=gis group=half bpipe=on
trace v-half name=v-half
trace v-min name=v-min
trace zb-v name=zb-v
trace dualpipe-v name=dualpipe-v
scripts/plot.py timelines "${pictures[@]}" -o docs/img/schedules.svg
