#!/bin/bash
# Times the configurations that --search --write-five DIR wrote, and copies the fastest to DIR/best.yaml:
#
#     scripts/five.sh DIR [-o KEY=VALUE]...
#
# Each runs 20 steps; the median of the last 15 counts. PROGRAM: the trainer (./train_llama). What does not run is named.
# The best of the plan's five fastest was within 1 % of the best of all measured layouts in 25 of 29 published sets of
# ten or more, the first alone within 3 % in 18 (docs/published.md).
set -u
if [ $# -lt 1 ] || [ "$1" = --help ] || [ ! -d "$1" ]; then
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p;}' "$0"
    exit 2
fi
folder=$1 program=${PROGRAM:-./train_llama} best='' least=''
shift
for config in "$folder"/[1-5].yaml; do
    metrics=${config%.yaml}.jsonl checkpoints=${config%.yaml}.checkpoints log=${config%.yaml}.log
    rm -rf "$metrics" "$checkpoints"
    "$program" -q -c "$config" "$@" -o train.steps=20 -o checkpoint.every=0 -o checkpoint.dir="$checkpoints" \
        -o data.val_every=0 -o log.metrics="$metrics" > "$log" 2>&1
    step=$(python3 -c '
import json, statistics, sys
steps = [row["step_ms"] for row in map(json.loads, open(sys.argv[1])) if row["type"] == "step"]
print(f"{statistics.median(steps[5:]):.1f}" if len(steps) == 20 else "")' "$metrics" 2> /dev/null)
    if [ -z "$step" ]; then
        echo "$config  failed: $(grep -m1 "^${program##*/}: " "$log" || tail -n 1 "$log")"
        continue
    fi
    echo "$config  $step ms"
    if [ -z "$least" ] || python3 -c 'import sys; sys.exit(float(sys.argv[1]) >= float(sys.argv[2]))' "$step" "$least"; then
        least=$step best=$config
    fi
done
[ -n "$best" ] || { echo "five.sh: none of $folder/[1-5].yaml ran; the logs are in the same folder" >&2; exit 1; }
cp "$best" "$folder/best.yaml"
echo "$folder/best.yaml is $best, $least ms"
