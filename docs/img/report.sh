#!/usr/bin/env bash
# Draws report.png anew, or another FILE: twelve steps of the tiny LLaMA on this machine, their report opened in Chromium, 200 colours.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-docs/img/report.png}
run=$(mktemp -d)/llama_tiny
trap 'rm -rf "${run%/*}"' EXIT
mkdir "$run"
tiny=(./train_llama -q -c configs/llama_tiny.yaml -o train.steps=12 -o data.val_every=4 -o checkpoint.dir=)
"${tiny[@]}" -o "log.metrics=$run/metrics.jsonl" --trace "$run/trace.json" >/dev/null
"${tiny[@]}" --plan --json >"$run/plan.json"
scripts/report.py "$run"
chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars --window-size=1200,2056 \
    --screenshot="$run/report.png" "file://$run/report.html" 2>/dev/null
/usr/bin/python3 - "$run/report.png" "$out" <<'END'
import sys
from PIL import Image

Image.open(sys.argv[1]).convert("RGB").quantize(200, dither=Image.Dither.NONE).save(sys.argv[2], optimize=True)
END
