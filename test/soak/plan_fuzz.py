"""Random configurations through --plan --json: an accepted configuration can always be planned, its verdict and `best`
never contradict its table, and a row's values reproduce that row's bytes and step. PLAN_FUZZ (400) sets the number of
configurations.
"""

import json
import os
import random
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from trainer_runs import command  # noqa: E402

NAMES = ["1f1b", "auto", "gpipe", "zb-d", "v-half", "v-min", "zb-v", "dualpipe-v", "interleaved", "gis"]
KEYS = ("name", "chunks", "split_backward", "bpipe", "evict_to", "recompute_layers", "recompute")


def for_stages(rng, stages, values):
    """Returns one value, or sometimes a list with a value for each stage."""
    if rng.random() < 0.8:
        return rng.choice(values)
    return f"[{', '.join(str(rng.choice(values)) for _ in range(stages))}]"


def configuration(rng):
    """Returns the sections of a random configuration as YAML."""
    p, d, b = rng.randint(1, 16), rng.choice([1, 2]), rng.choice([1, 1, 2, 3])
    m = rng.choice([p, p + 1, 2 * p, 2 * p + 1, 4 * p, 3 * p + rng.randint(0, p)])
    layers, heads = p + rng.choice([0, 1, p, p + 1, 3 * p]), rng.choice([2, 4])
    kind = rng.choice(["hidden: 64, ffn: 96", "hidden: 1024, ffn: 2816"])
    data = (
        "hardware: {device: cpu, peak_tflops: 0.05, reserve_gib: 0"
        if rng.random() < 0.2
        else "hardware: {device: cuda, gpu: h100, reserve_gib: 0"
    )
    return "\n".join(
        [
            (
                f"model: {{family: llama, {kind}, layers: {layers}, heads: {heads}, vocab: {rng.choice([100, 32000])},"
                " seq_len: 128}"
            ),
            (
                f"parallel: {{pipeline: {p}, tensor: {rng.choice([1, 1, 2])}, data: {d}, placement:"
                f" {rng.choice(['linear', 'adjacent'])}}}"
            ),
            (
                f"schedule: {{name: {rng.choice(NAMES)}, bpipe: {rng.choice(['off', 'on', 'auto'])}, micro_batch: {b},"
                f" evict_to: {rng.choice(['peer', 'host'])}, split_backward:"
                f" {rng.choice(['auto', 'auto', 'on', 'off'])}, recompute_layers: {for_stages(rng, p, [0, 0, 1])},"
                f" recompute: {for_stages(rng, p, ['none', 'pointwise'])}}}"
            ),
            f"attention: {{mode: {for_stages(rng, p, ['none', 'recompute', 'flash'])}}}",
            f"train: {{global_batch: {m * b * d}, precision: {rng.choice(['fp32', 'bf16'])}}}",
            'data: {train: "nowhere/*.bin"}',
            f"{data}, memory_gib: {rng.choice([0.05, 0.2, 1, 80])}, network_gb_s: {rng.choice([1, 25])}}}",
        ]
    )


def plan(path, *overrides):
    ended = command("llama", "-c", path, "--plan", "--json", overrides=overrides)
    return ended, json.loads(ended.stdout) if ended.returncode == 0 else None


def again(path, row):
    """Plans the values of one row."""
    values = {key: row[key] for key in KEYS}
    kept = [key for key in ("group", "delay") if row[key]] + (["slots", "load_ahead"] if row["bpipe"] == "on" else [])
    values.update({key: row[key] for key in kept})
    overrides = [f"schedule.{key}={value}" for key, value in values.items()]
    attention = row["attention"]
    words = f"[{', '.join(attention)}]" if isinstance(attention, list) else attention
    return plan(path, *overrides, f"attention.mode={words}")


def look_at_table(told):
    """best is the fastest row that fits, or None if no row fits."""
    rows, best = told["schedules"], told["best"]
    assert rows and len({json.dumps(row) for row in rows}) == len(rows)
    fitting = [row["step_ms"] for row in rows if row["fits"]]
    assert (best is None) == (not fitting)
    if best is not None:
        # A row that evicts is best only if it saves more than a thousandth of a step.
        assert rows[best]["fits"] and rows[best]["step_ms"] <= min(fitting) * 1.0011
    for row in rows:
        assert 0 <= row["bubble"] < 1 and row["step_ms"] > 0 and row["peak_bytes"] > 0
        assert row["bpipe"] == "on" or row["transfer_exposed_ms"] == 0


def look_at_verdict(told, text):
    """The verdict's words and choice agree with the table and the stages."""
    verdict = told["verdict"]
    micro_batch = int(re.search(r"micro_batch: (\d+)", text)[1])
    assert verdict["reason"].startswith("Yes" if verdict["use_bpipe"] else "No")
    if verdict["use_bpipe"]:
        assert f" micro-batch {micro_batch} fits only with BPipe" in verdict["reason"]
    if "fits without BPipe" in verdict["reason"] and "bpipe: on" not in text:
        assert all(stage["fits"] for stage in told["stages"])


def look_at_one(rng, folder):
    """Plans one configuration; returns False if it is refused as a configuration."""
    text = configuration(rng)
    path = folder / "random.yaml"
    path.write_text(text + "\n")
    ended, told = plan(path)
    if ended.returncode == 2:
        assert re.search(r"random\.yaml:\d+: ", ended.stderr), ended.stderr
        return False
    try:
        assert ended.returncode == 0, ended.stderr
        look_at_table(told)
        look_at_verdict(told, text)
        row = rng.choice(told["schedules"])
        ended, other = again(path, row)
        assert ended.returncode == 0, f"{row}: {ended.stderr}"
        assert max(stage["peak_bytes"] for stage in other["stages"]) == row["peak_bytes"], row
        assert all(stage["fits"] for stage in other["stages"]) == row["fits"], row
        for key in ("step_ms", "bubble", "transfer_exposed_ms"):
            assert abs(other[key] - row[key]) <= 1e-9 * max(1, abs(row[key])), (key, other[key], row)
    except AssertionError:
        print(text, file=sys.stderr)
        raise
    return True


def look_at_many(count, seed, folder):
    """Plans configurations until `count` were accepted; returns how many were refused."""
    rng, accepted, refused = random.Random(seed), 0, 0
    while accepted < count:
        if look_at_one(rng, folder):
            accepted += 1
        else:
            refused += 1
    return refused


def main():
    count, seed = int(os.environ.get("PLAN_FUZZ", "400")), int(os.environ.get("PLAN_FUZZ_SEED", "1"))
    with tempfile.TemporaryDirectory() as folder:
        refused = look_at_many(count, seed, Path(folder))
    print(f"{count} random configurations planned, {refused} refused with their place")


if __name__ == "__main__":
    main()
