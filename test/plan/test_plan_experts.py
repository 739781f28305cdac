"""Plans of mixtures of experts: their time comes from the operations and exchanges that a run makes
(device/count.h)."""

import json

import pytest
from trainer_runs import command, write_config

MODEL = ("{family: llama, hidden: 2048, layers: 8, heads: 16, kv_heads: 4, ffn: 6144, vocab: 32000, seq_len: 4096"
         ", experts: 64, experts_per_token: 8, expert_ffn: 768}")  # fmt: skip
GPUS = "{device: cuda, gpu: h100, gpus_per_node: 8, network_gb_s: 400}"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("experts"), model=MODEL, parallel="{data: 16, expert: 8}",
                        hardware=GPUS,
                        schedule="{bpipe: off}", train="{global_batch: 64, precision: bf16}")  # fmt: skip


def plan(config, *keys):
    ended = command("llama", "-c", config, "--plan", "--json", "-q", overrides=keys)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    return told, {line["what"]: line["ms"] for line in told["waterfall"]}


def test_the_lines_of_the_waterfall_sum_to_the_step(config):
    told, lines = plan(config)
    assert lines["experts' exchange"] > 0 and lines["imbalance"] > 0
    assert sum(lines.values()) == pytest.approx(told["step_ms"], rel=1e-9)


def test_dense_models_have_no_lines_of_experts(config):
    dense = write_config(config.parent, model=MODEL[: MODEL.index(", experts")] + "}", hardware=GPUS,
                         parallel="{data: 8}",
                         schedule="{bpipe: off}", train="{global_batch: 64, precision: bf16}")  # fmt: skip
    _, lines = plan(dense)
    assert "experts' exchange" not in lines and "imbalance" not in lines


def test_uneven_experts_cost_as_much_as_their_spread_says(config):
    even, some, more = (plan(config, f"hardware.expert_spread={spread}")[1] for spread in (1e-6, 0.2, 0.4))
    assert even["imbalance"] < 1e-3 * even["products at peak"]
    assert 0 < some["imbalance"] < more["imbalance"]
    assert even["products at peak"] == pytest.approx(more["products at peak"], rel=0.01)
    # More rows than the buffers hold are sent in two parts, of smaller messages.
    assert even["experts' exchange"] == pytest.approx(some["experts' exchange"], rel=0.02)
    assert even["experts' exchange"] < more["experts' exchange"] < 1.2 * even["experts' exchange"]


def test_muon_keeps_one_moment_of_experts_and_takes_its_products(config):
    """Without replicas of the experts, a stage's states shrink by 4 bytes a parameter, but its ends' and routers'."""
    keys = ("parallel.data=8", "train.optimizer=")
    (adamw, few), (muon, more) = (plan(config, *keys[:-1], keys[-1] + name) for name in ("adamw", "muon"))
    assert more["optimizer"] > few["optimizer"]
    moments = [told["stages"][0]["memory"]["optimizer"] for told in (adamw, muon)]
    assert 0.5 < moments[1] / moments[0] < 0.51


def test_experts_of_one_rank_are_not_exchanged(config):
    _, lines = plan(config, "parallel.expert=1")
    assert lines["experts' exchange"] == lines["imbalance"] == 0


def test_exchanges_between_nodes_follow_the_network(config):
    near = plan(config)[1]["experts' exchange"]
    far, slow = (plan(config, "parallel.expert=16", f"hardware.network_gb_s={rate}")[1]["experts' exchange"]
                 for rate in (400, 100))  # fmt: skip
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
                         train="{global_batch: 64, precision: bf16, fp8: tensor}")  # fmt: skip
    (own, passes), (theirs, fewer) = plan(dense), plan(dense, "hardware.trainer=nvidia")
    assert fewer["passes over memory"] < passes["passes over memory"]
    assert fewer["tensor collectives"] < passes["tensor collectives"]
    assert fewer["products at peak"] == pytest.approx(passes["products at peak"], rel=1e-3)
    assert own["others"][0]["mid_ms"] == pytest.approx(theirs["others"][0]["mid_ms"])
    assert theirs["step_ms"] < own["step_ms"]
    assert [stage["peak_bytes"] for stage in own["stages"]] == [stage["peak_bytes"] for stage in theirs["stages"]]
