"""Plans of mixtures of experts: their time comes from the operations and exchanges that a run makes
(device/count.h)."""

import json
import re
import statistics

import pytest
from trainer_runs import command, walked_tokens, write_config, write_tokens

MODEL = ("{family: llama, hidden: 2048, layers: 8, heads: 16, kv_heads: 4, ffn: 6144, vocab: 32000, seq_len: 4096"
         ", experts: 64, experts_per_token: 8, expert_ffn: 768}")
GPUS = "{device: cuda, gpu: h100, gpus_per_node: 8, network_gb_s: 400}"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("experts"), model=MODEL, parallel="{data: 16, expert: 8}",
                        hardware=GPUS, schedule="{bpipe: off}", train="{global_batch: 64, precision: bf16}")


def plan(config, *keys):
    ended = command("llama", "-c", config, "--plan", "--json", "-q", overrides=keys)
    told = json.loads(ended.stdout)
    return told, {line["what"]: line["ms"] for line in told["waterfall"]}


def test_the_lines_of_the_waterfall_sum_to_the_step(config):
    told, lines = plan(config)
    assert lines["experts' exchange"] > 0 and lines["imbalance"] > 0
    assert sum(lines.values()) == pytest.approx(told["step_ms"], rel=1e-9)


def test_dense_models_have_no_lines_of_experts(config):
    dense = write_config(config.parent, model=MODEL[: MODEL.index(", experts")] + "}", hardware=GPUS,
                         parallel="{data: 8}", schedule="{bpipe: off}", train="{global_batch: 64, precision: bf16}")
    _, lines = plan(dense)
    assert "experts' exchange" not in lines and "imbalance" not in lines


def test_uneven_experts_cost_as_much_as_their_spread_says(config):
    again = "schedule.recompute=experts"
    even, some, more = (plan(config, again, f"hardware.expert_spread={spread}")[1] for spread in (1e-6, 0.2, 0.4))
    assert even["imbalance"] < 1e-3 * even["products at peak"]
    assert 0 < some["imbalance"] < more["imbalance"]
    assert even["products at peak"] == pytest.approx(more["products at peak"], rel=0.01)
    # More rows than the buffers hold are sent in two parts, of smaller messages.
    assert even["experts' exchange"] == pytest.approx(some["experts' exchange"], rel=0.02)
    assert even["experts' exchange"] < more["experts' exchange"] < 1.2 * even["experts' exchange"]
    # Of two parts only the first is kept.
    fits, parts = (plan(config, f"hardware.expert_spread={spread}")[1]["products at peak"] for spread in (1e-6, 0.4))
    assert parts - fits == pytest.approx((even["products at peak"] - fits) / 2, rel=0.1)


def test_muon_keeps_one_moment_of_experts_and_takes_its_products(config):
    """Without replicas of the experts, a stage's states shrink by 4 bytes a parameter, but its ends' and routers'."""
    keys = ("parallel.data=8", "train.optimizer=")
    (adamw, few), (muon, more) = (plan(config, *keys[:-1], keys[-1] + name) for name in ("adamw", "muon"))
    assert more["optimizer"] > few["optimizer"]
    moments = [told["stages"][0]["memory"]["optimizer"] for told in (adamw, muon)]
    assert 0.5 < moments[1] / moments[0] < 0.51


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """Of runs with and without experts, in each of which a router sees all tokens of a step at once."""
    folder = tmp_path_factory.mktemp("runs")
    small = "{family: llama, hidden: 32, layers: 3, heads: 4, ffn: 48, vocab: 61, seq_len: 16"
    files = {}
    data = write_tokens(folder / "a.bin", walked_tokens(4096, 61))
    for name, more in (("mixed", ", experts: 8, experts_per_token: 2, dense_layers: 1}"), ("dense", "}")):
        files[name] = folder / f"{name}.jsonl"
        config = write_config(folder, model=small + more, parallel="{}", schedule="{bpipe: off, micro_batch: 8}",
                              train="{global_batch: 8, steps: 3}", hardware="{device: cpu}", data=f"{{train: {data}}}",
                              log=f"{{metrics: {files[name]}, experts: {name == 'mixed'}}}")
        command("llama", "-c", config)
    return files


def test_a_runs_metrics_tell_plans_how_uneven_its_experts_are(config, metrics):
    steps = [json.loads(line)["experts"] for line in metrics["mixed"].read_text().splitlines() if '"step"' in line]
    spread = statistics.mean(step["spread"] for step in steps)
    counted = [statistics.pstdev(layer) / statistics.mean(layer) for step in steps for layer in step["tokens"] if layer]
    assert spread == pytest.approx(statistics.mean(counted), rel=1e-3) and len(counted) == 6
    told, lines = plan(config, f"hardware.expert_spread={metrics['mixed']}")
    assert told["config"]["hardware"]["expert_spread"] == pytest.approx(spread, rel=1e-12)
    assert lines == plan(config, f"hardware.expert_spread={spread!r}")[1] != plan(config)[1]
    # A run that goes on may not have ended its last line. Of a long file the end is read.
    half = metrics["mixed"].with_name("half.jsonl")
    last = metrics["mixed"].read_text().splitlines()[-1]
    half.write_text(f"{last}\n{last[:300]}")
    assert plan(config, f"hardware.expert_spread={half}")[0]["config"]["hardware"]["expert_spread"] == pytest.approx(
        steps[-1]["spread"], rel=1e-12)
    blank = 2**24 - len(f'\n{{"why":""}}\n{last}\n')  # what is read begins with the end of the first line
    half.write_text(f'{{"type":"run"}}\n{{"why":"{" " * blank}"}}\n{last}\n')
    assert plan(config, f"hardware.expert_spread={half}")[0]["config"]["hardware"]["expert_spread"] == pytest.approx(
        steps[-1]["spread"], rel=1e-12)
    half.write_text(f"{metrics['mixed'].read_text()}{' ' * 2**24}\n{last}\n")
    half.write_text(half.read_text().replace(" " * 2**24, '{"type":"step","why":"' + " " * 2**24 + '"}'))
    assert plan(config, f"hardware.expert_spread={half}")[0]["config"]["hardware"]["expert_spread"] == pytest.approx(
        steps[-1]["spread"], rel=1e-12)


def test_what_is_no_metrics_file_of_experts_is_one_sentence(config, metrics):
    for value, sentence in ((metrics["dense"], "has no step of a model with experts"),
                            (config, "is not the log.metrics file of a run"),
                            (config.parent, "is not a regular file"), ("0.3x", "0.3x: cannot be read")):
        ended = command("llama", "-c", config, "--plan", overrides=[f"hardware.expert_spread={value}"], code=2)
        lines = ended.stderr.splitlines()
        assert len(lines) == 1 and sentence in lines[0], ended.stderr
        assert "-o hardware.expert_spread: " in lines[0]
        assert lines[0].endswith("use a number above 0 up to 1000, or auto, or the log.metrics file of a run")


def test_recomputed_experts_are_sent_once_more_and_take_no_memory(config):
    keys = ("parallel.pipeline=2", "parallel.data=8", "hardware.expert_spread=1e-6")
    kept, again = (plan(config, *keys, f"schedule.recompute={word}") for word in ("none", "experts"))
    # Rows go to their experts and back in a forward, and their gradients in a backward, which now sends rows again.
    assert again[1]["experts' exchange"] == pytest.approx(5 / 4 * kept[1]["experts' exchange"], rel=0.03)
    assert again[0]["step_ms"] > 1.05 * kept[0]["step_ms"]
    assert {row["recompute"] for row in again[0]["schedules"]} == {"none", "experts", "pointwise"}
    stage, few = (answer[0]["stages"][0] for answer in (kept, again))
    hidden, ffn, rows, layers = 2048, 768, int(1.25 * 8 * 4096), stage["last_layer"] + 1
    more = stage["bundle_bytes"] - few["bundle_bytes"]
    assert more == pytest.approx(layers * rows * (2 * (hidden + 2 * ffn) + 4), rel=1e-3)
    # A layer whose forward runs again keeps none of it, nor has it room for it then.
    whole = [plan(config, *keys, "schedule.recompute_layers=99", f"schedule.recompute={word}")[0]["stages"]
             for word in ("none", "experts")]  # fmt: skip
    assert whole[0] == whole[1]


def test_experts_of_one_rank_are_not_exchanged(config):
    _, lines = plan(config, "parallel.expert=1")
    assert lines["experts' exchange"] == lines["imbalance"] == 0


def test_experts_on_fewer_ranks_than_tensors_have_gradients_to_sum(config):
    tensor = ("parallel.tensor=4", "parallel.sequence=true", "parallel.data=1")
    four, two = (plan(config, *tensor, f"parallel.expert={ranks}") for ranks in (4, 2))
    assert four[1]["sums over data ranks"] == 0
    said = command("llama", "-c", config, "--plan", "-v", overrides=(*tensor, "parallel.expert=2")).stdout
    alone = float(re.search(r"gradient sums ([\d.]+) ms", said)[1])  # without the backward that they slow down
    assert 0 < alone < 0.9 * two[1]["sums over data ranks"]


def test_exchanges_between_nodes_follow_the_network(config):
    near = plan(config)[1]["experts' exchange"]
    far, slow = (plan(config, "parallel.expert=16", f"hardware.network_gb_s={rate}")[1]["experts' exchange"]
                 for rate in (400, 100))
    assert far > 1.5 * near and slow == pytest.approx(4 * far, rel=0.2)


def test_other_programs_send_a_token_to_a_node_once(config):
    near, _ = plan(config, "hardware.expert_spread=1e-6")
    assert [band["program"] for band in near["others"]] == ["nvidia"]
    own, copies = plan(config, "hardware.expert_spread=1e-6", "parallel.expert=16")
    theirs, once = plan(config, "hardware.expert_spread=1e-6", "parallel.expert=16", "hardware.trainer=nvidia")
    assert own["others"][0]["mid_ms"] == pytest.approx(theirs["others"][0]["mid_ms"])
    # Eight copies of a token reach both of two nodes; without a dispatcher four of them leave.
    assert once["experts' exchange"] == pytest.approx(copies["experts' exchange"] / 4, rel=0.1)


def test_other_programs_gather_tensors_in_eight_bits(tmp_path):
    dense = write_config(tmp_path, model=MODEL[: MODEL.index(", experts")] + "}", hardware=GPUS,
                         parallel="{tensor: 4, data: 4, sequence: true}", schedule="{bpipe: off}",
                         train="{global_batch: 64, precision: bf16, fp8: tensor}")
    (own, passes), (theirs, fewer) = plan(dense), plan(dense, "hardware.trainer=nvidia")
    assert fewer["passes over memory"] < passes["passes over memory"]
    assert fewer["tensor collectives"] < passes["tensor collectives"]
    assert fewer["products at peak"] == pytest.approx(passes["products at peak"], rel=1e-3)
    assert own["others"][0]["mid_ms"] == pytest.approx(theirs["others"][0]["mid_ms"])
    assert theirs["step_ms"] < own["step_ms"]
    assert [stage["peak_bytes"] for stage in own["stages"]] == [stage["peak_bytes"] for stage in theirs["stages"]]
