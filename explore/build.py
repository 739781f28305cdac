#!/usr/bin/env python3
"""Assembles the page of `make explore`: one file that works from disk, without a network.

    explore/build.py program.js program.wasm -o index.html
"""

import argparse
import base64
import json
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT = 3 << 20


def configs():
    """Returns {name: text} of the ready-made configurations that name GPUs, without comments."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in sorted(HERE.parent.glob("configs/*.yaml"))}
    return {name: re.sub(r"(^|\s)#.*", "", text) for name, text in texts.items() if "_tiny" not in name}


def atlas():
    """Returns the cases of studies/atlas.json and the two maps as addresses for <img>, or None before they are made."""
    data, images = HERE.parent / "studies" / "atlas.json", sorted(HERE.parent.glob("docs/img/atlas_*.svg"))
    if not data.exists():
        return None
    told = json.loads(data.read_text(encoding="utf-8"))
    cases = [{key: value for key, value in case.items() if key != "found"} for case in told["cases"]]
    maps = ["data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode() for path in images]
    return {"searches": told["searches"], "cases": cases, "maps": maps}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loader", type=Path)
    parser.add_argument("wasm", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    # The worker's code is a separate text, which the page passes to the worker as a file in memory.
    engine = options.loader.read_text(encoding="utf-8") + (HERE / "program.js").read_text(encoding="utf-8")
    data = {"ENGINE": engine, "WASM": base64.b64encode(options.wasm.read_bytes()).decode(), "CONFIGS": configs(),
            "ATLAS": atlas()}
    code = (HERE.parent / "scripts" / "draw.js", HERE / "keep.js", HERE / "page.js")
    script = "\n".join([*(f"const {name} = {json.dumps(value)};" for name, value in data.items()),
                        *(path.read_text(encoding="utf-8") for path in code)]).replace("</script", "<\\/script")
    page = (HERE / "page.html").read_text(encoding="utf-8")
    page = page.replace("/*STYLE*/", (HERE / "page.css").read_text(encoding="utf-8")).replace("/*SCRIPT*/", script)
    size = len(page.encode())
    if size > LIMIT:
        raise SystemExit(f"{options.output}: the page has {size} bytes; the limit is {LIMIT}")
    options.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
