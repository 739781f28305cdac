#!/usr/bin/env python3
"""Prints how fast the page of `make explore` is in headless Chromium: medians of several tries, in milliseconds.

    test/explore/measure.py [build/explore/index.html]
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test/support"))
import browser

SETTINGS = """Object.assign(state, {config: "llama65b", gpu: "h100", p: "%s", t: "1", d: "1", b: "1", batch: "%s",
                           more: "model.layers=%s\\nparallel.sequence=false",
                           memory: "2000", schedule: "", bpipe: "", rows: []});
fill(); window.ready = false; ask().then(() => { window.ready = true; }); 0"""
REDRAW = """(() => { const began = performance.now(); drawShown();
document.getElementById('timeline').getContext('2d').getImageData(0, 0, 1, 1); return performance.now() - began; })()"""

def median_of(chromium, script, tries=9):
    return statistics.median(chromium.evaluate(script) for _ in range(tries))


def ask(chromium, stages, batch):
    chromium.evaluate(SETTINGS % (stages, batch, 2 * stages))
    began = time.monotonic()
    chromium.wait_for("window.ready")
    assert chromium.evaluate("[shown.plan?.microbatches, shown.plan?.stages.length]") == [batch, stages]
    return 1e3 * (time.monotonic() - began)


def main(page):
    with tempfile.TemporaryDirectory() as folder, browser.Browser(folder) as chromium:
        chromium.open(page, 1400, 1000)
        chromium.wait_for("byId('proof').textContent !== ''")
        whole = [ask(chromium, 8, 64) for _ in range(5)]
        print(f"p = 8, m = 64: planned and drawn {chromium.evaluate('shown.firstMs'):.0f} ms after the question; until"
              f" all is idle {statistics.median(whole):.0f} ms")
        ask(chromium, 16, 200)
        print(f"16 stages, 200 microbatches: a redraw takes {median_of(chromium, REDRAW):.1f} ms")
        chromium.evaluate("shown.traces.push(shown.traces[0], shown.traces[0]); drawShown()")
        print(f"three of them: {median_of(chromium, REDRAW):.1f} ms")
        chromium.evaluate("Object.assign(state, {p: '', t: '', batch: '', more: '', memory: ''}); state.gpus = '64';"
                          " fill(); search()")
        began = time.monotonic()
        chromium.wait_for("byId('progress').textContent.includes('configurations in')")
        said = chromium.evaluate("byId('progress').textContent")
        print(f"search for 64 GPUs: {1e3 * (time.monotonic() - began):.0f} ms, {said}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/explore/index.html")
