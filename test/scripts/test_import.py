"""Launch scripts and configurations of other trainers: every setting is converted, named with its effect, or
refused."""

import copy
import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from trainer_runs import execute, script

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from foreign import megatron, nanotron, nemo, torchtitan  # noqa: E402
from foreign.documents import overridden, read_yaml  # noqa: E402
from foreign.settings import unused  # noqa: E402
from foreign.shell import Script, unknown_in  # noqa: E402
from run_files import Failure, read_text  # noqa: E402

SMALL = ("--num-layers 8 --hidden-size 512 --num-attention-heads 8 --seq-length 512 --vocab-size 1000"
         " --micro-batch-size 1"
         " --global-batch-size 16 --train-iters 100 --hidden-dropout 0 --attention-dropout 0 --bf16")
LLAMA = "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
MIXTURE = f"{LLAMA} --num-experts 8"
LATENT = f"{LLAMA} --multi-latent-attention --q-lora-rank 96"
B200 = ("-o", "hardware.gpu=b200")
ARRAYS = r"""#!/bin/bash
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=4   # one a GPU
#SBATCH --gpus-per-node=4
# SIZES=(--num-layers 1)
TP=${TP:-2}; PP=$((TP * 2))
SEQ=4096
SIZES=(
    --num-layers 32          # of all stages
    --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length $SEQ --max-position-embeddings ${SEQ}
    --swiglu --normalization RMSNorm --use-rotary-position-embeddings --disable-bias-linear
    --untie-embeddings-and-output-weights
)
if [ "$EIGHT_BITS" = true ]; then SIZES+=("--fp8-format hybrid"); fi
QUOTED="  --micro-batch-size 1 --global-batch-size 1024 \
    --train-samples 10240000 --lr-warmup-fraction .01 --lr 3e-4 --min-lr 3e-5 \
    --lr-decay-style cosine --bf16 --tokenizer-type GPT2BPETokenizer "
MORE=("--hidden-dropout 0" "--attention-dropout 0.0" '--use-distributed-optimizer')
srun -l bash -c "python3 -u hubert/pretrain_gpt.py ${SIZES[*]} $QUOTED ${MORE[*]} \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --sequence-parallel --save $OUT/here"
"""
TITAN = """
[model]
name = "llama3"
flavor = "8B"
converters = ["float8"]
[training]
batch_size = 8
seq_len = 8192
steps = 1000
tensor_parallel_degree = 2
data_parallel_degree = -1
dtype = "bfloat16"
enable_loss_parallel = true
warmup_steps = 50
[optimizer]
lr = 3e-4
early_step_in_backward = true
[experimental]
pipeline_parallel_degree = 4
pipeline_parallel_split_points = ["layers.9", "layers.17", "layers.25"]
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
[job]
description = "a run"
"""
EIGHT_B = '[model]\nname = "llama3"\nflavor = "8B"\n'
NANO = """
general: {project: p, run: r, seed: 7}
parallelism: {dp: 4, pp: 2, tp: 2, pp_engine: 1f1b, tp_mode: REDUCE_SCATTER, tp_linear_async_communication: true}
tokens: {sequence_length: 2048, micro_batch_size: 2, batch_accumulation_per_replica: 8, train_steps: 2000,
         val_check_interval: -1}
model:
  dtype: bfloat16
  init_method: {std: 0.02}
  model_config: {is_llama_config: true, z_loss_enabled: true, hidden_size: 1024, intermediate_size: 2816,
                 num_hidden_layers: 16, num_attention_heads: 16, num_key_value_heads: 4, vocab_size: 49152,
                 max_position_embeddings: 2048, rms_norm_eps: 1.0e-5, tie_word_embeddings: true,
                 sliding_window_size: 64}
optimizer:
  zero_stage: 0
  weight_decay: 0.1
  clip_grad: 1.0
  accumulate_grad_in_fp32: true
  optimizer_factory: {name: adamW, adam_beta1: 0.9, adam_beta2: 0.95, adam_eps: 1.0e-8}
  learning_rate_scheduler: {learning_rate: 3.0e-4, lr_warmup_steps: 100, lr_warmup_style: linear,
                            lr_decay_style: 1-sqrt,
                            lr_decay_starting_step: 1600, lr_decay_steps: 400, min_decay_lr: 0}
data_stages: [{name: one, start_training_step: 1, data: {seed: 1}},
              {name: two, sequence_length: 4096, start_training_step: 5, data: {seed: 1}}]
"""
NEMO = """
trainer: {devices: 8, num_nodes: 4, precision: bf16, max_steps: 5000, gradient_clip_val: 1.0, log_every_n_steps: 10}
exp_manager: {name: x}
model:
  mcore_gpt: true
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 4
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 5
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 40
  hidden_size: 5120
  ffn_hidden_size: ${multiply:2, 6912}
  num_attention_heads: 40
  num_query_groups: null
  activation: fast-swiglu
  normalization: rmsnorm
  bias: false
  position_embedding_type: rope
  rotary_percentage: 1.0
  share_embeddings_and_output_weights: false
  hidden_dropout: 0.0
  attention_dropout: 0.0
  sequence_parallel: true
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 2
  attention_type: multihead
  tokenizer: {library: sentencepiece, type: null, model: /data/llama/tokenizer.model}
  optim: {name: mcore_distributed_optim, lr: 1.0e-4, weight_decay: 0.1, betas: [0.9, 0.95],
          sched: {name: CosineAnnealing, warmup_steps: 500, constant_steps: 0, min_lr: 1.0e-5}}
"""
DEEPSPEED = """
TP=2
GPUS=${1:-8}
echo {} > $(pwd)/ds.json
cat <<EOT > ds.json
{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1},
 "bf16": {"enabled": true}, "gradient_clipping": 0.5}
EOT
run_it() {
    deepspeed --num_nodes 1 --num_gpus $GPUS pretrain_gpt.py "$@"
}
for LAYERS in 8 16; do
  case $LAYERS in
    8) WIDTH=512 ;;
    *) WIDTH=1024 ;;
  esac
  run_it --num-layers $LAYERS --hidden-size $WIDTH --num-attention-heads 8 --seq-length 512 \\
    --vocab-size 1000 --train-iters 10 --hidden-dropout 0 --attention-dropout 0 --tensor-model-parallel-size $TP \\
    --deepspeed --deepspeed_config ds.json --checkpoint-activations
done
"""


def imported(tmp_path, program, text, *before, name=None, after=(), code=0):
    """Runs import.py on a file with the text: a launch script, or what the program's configurations are."""
    path = tmp_path / (name or {"megatron": "run.sh", "torchtitan": "run.toml"}.get(program, "run.yaml"))
    path.write_text(text)
    return script("import.py", *before, program, path, *after, code=code)


def converted(*file, **words):
    """Returns (comments, configuration) of a file with the text."""
    answer = imported(*file, **words)
    return read(answer.stdout)


def refused(*file, **words):
    """Returns the sentence that refuses a file with the text."""
    answer = imported(*file, **words, code=2)
    assert answer.stdout == "", answer.stderr
    return answer.stderr


def read(text):
    lines = text.splitlines()
    comments = [line for line in lines if line.startswith("#")]
    return "\n".join(comments), {line.partition(": ")[0]: json.loads(line.partition(": ")[2])
                                 for line in lines[len(comments) :]}


def words(*more, code=0):
    return script("import.py", "megatron", *SMALL.split(), *" ".join(more).split(), code=code)


def has(config, wanted):
    """Asserts that the configuration has these keys ("train.steps") with these values."""
    found = {key: config.get(key.split(".")[0], {}).get(key.split(".")[1]) for key in wanted}
    assert found == wanted


def plan(tmp_path, config, *more):
    path = tmp_path / "our.yaml"
    path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in config.items()))
    program = ROOT / f"train_{config['model']['family']}"
    planned = execute([program, "-c", path, "--plan", "--json", *more])
    return json.loads(planned.stdout)


def test_a_launch_script_of_arrays_and_quoted_blocks_is_planned_as_it_is(tmp_path):
    comments, config = converted(tmp_path, "megatron", ARRAYS)
    # beta2 and weight_decay have the defaults there.
    has(config, {"model.family": "llama", "model.layers": 32, "model.ffn": 14336, "model.kv_heads": 8,
                 "model.seq_len": 4096, "parallel.tensor": 2, "parallel.pipeline": 4, "parallel.data": 8,
                 "parallel.sequence": True, "hardware.gpus_per_node": 4, "train.global_batch": 1024,
                 "train.steps": 10000, "train.warmup_steps": 100, "train.precision": "bf16", "train.min_lr_ratio": 0.1,
                 "train.beta2": 0.999, "train.weight_decay": 0.01})
    assert "--vocab-size is not given: 50257" in comments and "--save $OUT/here" in comments
    assert "causal" not in config["model"]  # a folder may be anybody's
    assert plan(tmp_path, config, *B200)["step_ms"] > 0
    comments, _ = converted(tmp_path, "megatron", ARRAYS.replace("MORE[*]", "MORE[@]"))
    assert "--attention-dropout 0.0: is an argument of the shell, not of the command in its text" in comments
    comments, config = converted(tmp_path, "megatron", ARRAYS.replace("_gpt", "_bert"), after=["--vocab-size", "32000"])
    has(config, {"model.vocab": 32000, "model.causal": False, "train.objective": "masked"})
    assert "model: hubert/pretrain_bert.py: attention sees the whole sequence; the head for sentence pairs" in comments


def test_the_scripts_gpus_of_a_node_stay_with_a_gpu_that_has_another_number(tmp_path):
    _, config = converted(tmp_path, "megatron", ARRAYS, "--gpu", "gh200")
    assert plan(tmp_path, config)["config"]["hardware"]["gpus_per_node"] == 4


def test_variables_of_the_environment_and_arguments_can_be_given(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(ARRAYS)
    _, config = read(script("import.py", "megatron", "TP=4", "EIGHT_BITS=true", path).stdout)
    assert (config["parallel"]["tensor"], config["parallel"]["pipeline"], config["train"]["fp8"]) == (4, 8, "tensor")
    text = SMALL.replace("--num-layers 8", "--num-layers $LAYERS")
    text = f"LAYERS=$1\ntorchrun --nproc_per_node=8 pretrain_gpt.py {text}"
    assert "arguments after its name" in refused(tmp_path, "megatron", text)
    assert read(script("import.py", "megatron", path, "12").stdout)[1]["model"]["layers"] == 12


@pytest.mark.parametrize("launcher, gpus, node", [
    ("torchrun --nproc_per_node 8 --nnodes 2", 16, 8),
    ("torchrun --nproc-per-node=4 --nnodes=4", 16, 4),
    ("python -m torch.distributed.launch --nproc_per_node 8", 8, 8),
    ("deepspeed --num_nodes 2 --num_gpus 8", 16, 8),
    ("srun -N 4 --ntasks-per-node=4 python -u", 16, 4),
    ("mpirun -np 16 -npernode 8 python", 16, None),
    ("srun --nodes 2 torchrun --nproc_per_node 8 --nnodes 2", 16, 8),
    ("accelerate launch --num_processes 16 --num_machines 2", 16, 8),
    ("torchrun --standalone --nproc_per_node $((1 << 3))", 8, 8),
])
def test_the_launcher_says_the_number_of_gpus(tmp_path, launcher, gpus, node):
    _, config = converted(tmp_path, "megatron", f"{launcher} pretrain_gpt.py {SMALL}\n")
    assert config["parallel"]["data"] == gpus
    assert config.get("hardware", {}).get("gpus_per_node") == node


@pytest.mark.parametrize(
    "launcher",
    ["N=($(scontrol show hostnames))\ntorchrun --nproc_per_node 8 --nnodes ${#N[@]}", "python",
     "torchrun --nproc_per_node ${#LIST} --nnodes 1", "torchrun --nproc_per_node $GPUS --nnodes 2",
     "torchrun --nnodes 1:4 --nproc_per_node 8", "srun python"])
def test_an_unknown_number_of_gpus_is_refused(tmp_path, launcher):
    text = f"{launcher} pretrain_gpt.py {SMALL}\n"
    sentence = refused(tmp_path, "megatron", text)
    assert "the number of GPUs is not known" in sentence and "--gpus N" in sentence
    assert converted(tmp_path, "megatron", text, "--gpus", "16")[1]["parallel"]["data"] == 16


OTHERS = {
    "a.py": ("import os", "megatron", "is Python, which is not run"),
    "b.py": ("import os", "bridge", "is Python, which is not run"),
    "a.yaml": ("model: {}", "megatron", "is YAML; use nemo, bridge or nanotron"),
    "c.yml": ("model: {}", "megatron", "is YAML; use nemo, bridge or nanotron"),
    "a.toml": ("[model]", "nemo", "is TOML; use torchtitan"),
    "b.toml": ("[model]\nname = 'llama3'", "torchtitan", "names no model.flavor: sizes are not known (llama3 8B, "),
    "a.sh": ("torchrun x.py", "nanotron", "is a launch script; give the file that it names"),
    "a.json": ("{}", "megatron", "a model's config.json is planned with -c"),
    "b.sh": ("torchrun x.py --config-name=g model.num_layers=8", "megatron",
             "model.num_layers=8: is an argument of NeMo"),
    "c.sh": ("torchrun -m torchtitan.train --job.config_file a.toml", "megatron", "use torchtitan FILE.toml"),
    "d.sh": ("torchrun train.py --config-file a.yaml", "megatron", "--config-file: is an argument of nanotron"),
    "e.sh": ("while read n; do torchrun pretrain_gpt.py --num-layers $n; done", "megatron",
             "the loop of line 1 is not followed, and no command of the script has --num-layers"),
    "f.sh": ("source sizes.sh\ntorchrun pretrain_gpt.py $SIZES --bf16", "megatron",
             "--num-layers: is missing; add it, or give --model FILE with the sizes; not read: source sizes.sh: is not"
             " here; its settings are not known, $SIZES"),
    "g.sh": ("torchrun pretrain_gpt.py $GPT_ARGS --data data.toml data.y=1", "megatron", "$GPT_ARGS"),
    "h.sh": ("L=8\nread L <sizes\ntorchrun pretrain_gpt.py --num-layers $L", "megatron",
             "--num-layers: $L (read) is not known before the script runs"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_kind_is_refused_for_its_true_reason(tmp_path, name):
    text, program, sentence = OTHERS[name]
    assert sentence in refused(tmp_path, program, text, name=name)


def test_a_suffix_is_that_of_a_file_and_not_of_a_command(tmp_path):
    (tmp_path / "run.yaml").write_text("model: {}")
    for before, after in (([], ["trainer.num_nodes=2"]), (["X=1"], [])):
        answer = script("import.py", "megatron", *before, tmp_path / "run.yaml", *after, code=2)
        assert "run.yaml: is YAML; use nemo" in answer.stderr, answer.stderr
    command = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL} --save a.json"
    script("import.py", "megatron", command)
    _, config = converted(tmp_path, "nemo", json.dumps(read_yaml(NEMO)), name="run.json")
    assert config["model"]["layers"] == 40


def test_words_of_a_command_line_replace_those_of_a_file(tmp_path):
    words = ("model.num_layers=20", "++model.virtual_pipeline_model_parallel_size=null", "trainer.num_nodes=2",
             "model.bias=true", "model.data.reset_attention_mask=True", "trainer.max_time=04:00:00",
             "model.fp8_wgrad=False")
    comments, config = converted(tmp_path, "nemo", NEMO, after=words)
    has(config, {"model.layers": 20, "parallel.data": 2, "model.ffn": 13824, "data.mask_documents": "on"})
    assert "chunks" not in config["schedule"] and "linear layers have biases there" in comments
    assert "length: trainer.max_time 04:00:00: the run is planned to its last step" in comments
    assert "model.fp8_wgrad False: gradients of weights are computed from 8 bits" in comments
    _, config = converted(tmp_path, "torchtitan", TITAN, "--gpus", "64",
                          after=("--training.steps=77", "training.data_parallel_degree=8"))
    has(config, {"train.steps": 77, "parallel.data": 8})
    sentence = refused(tmp_path, "torchtitan", TITAN, after=["more"])
    assert "more: is not a setting; write KEY=VALUE" in sentence
    with pytest.raises(Failure, match="betas is .0.9, 0.95., not a table; write it whole"):
        overridden({"optim": {"betas": [0.9, 0.95]}}, ["optim.betas.0=0.7"])
    assert overridden({"a": None}, ["a.b=[x,2, 'y z']", "a.c=[]"]) == {"a": {"b": ["x", 2, "y z"], "c": []}}
    assert overridden({}, ["a.b=" + "[" * 60000]) == {"a": {"b": "[" * 60000}}


def test_a_number_that_deepspeeds_json_gets_from_elsewhere_is_named(tmp_path):
    batch = '"tensorboard": {"output_path": "$OUT/x\\"y"}, "train_batch_size": $BATCH'
    text = DEEPSPEED.replace('"train_batch_size": 16', batch)
    assert "ds.train_batch_size: the script does not set $BATCH" in refused(tmp_path, "megatron", text)
    script("import.py", "megatron", "BATCH=16", tmp_path / "run.sh")
    comments, _ = converted(tmp_path, "megatron", DEEPSPEED.replace("run_it()", "sed -i s/6/8/ ds.json\nrun_it()"),
                            after=["--global-batch-size", "16", "--micro-batch-size", "1"])
    assert "precision: --deepspeed_config ds.json: the content of this file is unknown" in comments
    assert "memory: zero_optimization.stage is 0, or not known: every data rank holds all optimizer state" in comments


def test_what_matters_most_comes_first_and_what_does_not_matter_is_one_line():
    answer = script("import.py", "--gpus", "8", "megatron", *SMALL.replace("--bf16", "--fp16").split(),
                    "--nproc-per-node", "4", "--xielu", "--optimizer", "sgd", "--rampup-batch-size", "8", "8", "800",
                    "--exit-interval", "5", "--log-interval", "10", "--save", "x")
    comments, config = read(answer.stdout)
    assert config["train"]["precision"] == "bf16"
    assert "# changes the plan: precision: --fp16: is planned as bf16" in comments
    kinds = [line.split(": ")[1] for line in comments.splitlines() if "changes the plan" in line]
    order = ["world", "precision", "length", "batch", "model", "memory", "speed", "training", "unknown"]
    assert kinds == sorted(kinds, key=order.index) and {"world", "length", "model", "memory"} <= set(kinds)
    assert sum(line.startswith("# without effect on the plan: ") for line in comments.splitlines()) == 1
    last = comments.splitlines()[-1]
    assert last.startswith("# without effect") and "--log-interval 10" in comments and "--save x" in comments


@pytest.mark.parametrize("more, steps, warmup", [
    ("--train-samples 160000 --lr-warmup-samples 1600", 10000, 100),
    ("--train-samples 160000 --lr-warmup-fraction 0.01", 10000, 100),
    ("--train-iters 500 --lr-warmup-fraction 0.1 --lr-decay-iters 400", 500, 40),
    ("--train-iters 500 --lr-warmup-iters 7", 500, 7),
    ("--train-tokens 81920 --lr-warmup-iters 1", 10, 1),
    ("--train-tokens 81921 --train-iters 500 --lr-warmup-iters 1", 11, 1),
])
def test_lengths_in_samples_and_fractions_become_steps(more, steps, warmup):
    small = SMALL.replace("--train-iters 100", "")
    answer = script("import.py", "--gpus", "8", "megatron", *small.split(), *more.split())
    comments, config = read(answer.stdout)
    assert (config["train"]["steps"], config["train"]["warmup_steps"]) == (steps, warmup)
    assert ("--lr-decay-iters" in comments) == ("--lr-decay-iters" in more)


def test_a_growing_batch_has_the_samples_of_megatrons(tmp_path):
    comments, config = converted(tmp_path, "megatron",
                                 f"torchrun --nproc_per_node 4 pretrain_gpt.py {SMALL.replace('--train-iters 100', '')}"
                                 " --rampup-batch-size 4 4 1200 --train-samples 4000")
    train = config["train"]
    # 400 samples for each of the sizes 4, 8 and 12, then 16
    assert train["batch_ramp"] == [[1, 4], [101, 8], [151, 12], [185, 16]]
    assert train["steps"] == 184 + (4000 - 400 - 400 - 34 * 12) // 16
    assert plan(tmp_path, config, *B200)["step_ms"] > 0


@pytest.mark.parametrize("more, sentence", [
    ("--num-experts 8 --nproc-per-node 8", "--num-experts 8: only LLaMA's layer can be planned with experts"),
    (f"{LLAMA} --num-experts 8 --moe-layer-freq 2 --nproc-per-node 8", "only the first layers can be dense"),
    (f"{LLAMA} --multi-latent-attention --nproc-per-node 8", "--q-lora-rank is not given: latent attention can be"),
    ("--swiglu", "is neither LLaMA's layer"),
    ("--heterogeneous-layers-config-encoded-json {}", "layers that differ cannot be planned"),
    ("--retro-add-retriever", "a model with a retriever cannot be planned"),
    ("--context-parallel-size 3 --nnodes 1 --nproc-per-node 8", "1 pipeline times 1 tensor times 3 context ranks"),
    ("--hidden-size many", "--hidden-size: needs an integer"),
    ("--attention-dropout off --nproc-per-node 8", "--attention-dropout: needs a number"),
    ("--lr nan --nproc-per-node 8", "--lr: needs a number"),
    ("--num-layers-per-virtual-pipeline-stage 0 --nproc-per-node 8",
     "--num-layers-per-virtual-pipeline-stage: 0 is out of range"),
    ("--num-layers-per-virtual-pipeline-stage 3 --pipeline-model-parallel-size 2 --nproc-per-node 8",
     "8 layers do not divide into chunks of 3"),
    ("--global-batch-size 17 --nproc-per-node 8", "is not a multiple of micro-batch 1 times 8 data ranks"),
    ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Ettt|ttL --nproc-per-node 8",
     "2 parts of 5 layers"),
    ("--recompute-granularity some --nproc-per-node 8", "is neither full nor selective"),
    (f"{MIXTURE} --expert-model-parallel-size 3 --nproc-per-node 8", "-parallel-size 3: 3 does not divide both the"),
])
def test_words_that_cannot_be_planned_are_refused(more, sentence):
    answer = words(more, code=2)
    assert sentence in answer.stderr and answer.stdout == ""


@pytest.mark.parametrize("more, key, value", [
    ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", "schedule.recompute_layers",
     8),
    ("--recompute-granularity full --recompute-method block --recompute-num-layers 3", "schedule.recompute_layers", 3),
    ("--checkpoint-activations", "schedule.recompute_layers", 8),
    ("--transformer-impl local --recompute-granularity selective", "attention.mode", "recompute"),
    ("--transformer-impl local", "attention.mode", "none"),
    ("--recompute-granularity selective", "attention.mode", "flash"),
    ("--lr-decay-style WSD --lr-wsd-decay-iters 10 --lr-wsd-decay-style minus_sqrt", "train.decay_shape", "1-sqrt"),
    ("--lr-decay-style WSD --lr-warmup-iters 50 --lr-wsd-decay-iters 80", "train.decay_steps", 50),
    ("--fp8-format e4m3 --fp8-recipe mxfp8", "train.fp8", "mx"),
    ("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 1", "schedule.chunks", 2),
    ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3", "parallel.layers", [3, 5]),
    ("--pipeline-model-parallel-size 2 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
     "parallel.layers", [4, 4]),
    ("--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 5",
     "parallel.layers", [3, 5]),
    ("--num-layers 14 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2"
     " --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
     "parallel.layers", [1, 2, 2, 2, 2, 2, 2, 1]),
    ("--reset-attention-mask --reset-position-ids", "data.mask_documents", "on"),
    (f"{LLAMA} --position-embedding-type yarn", "model.rope_factor", 1),
    (LATENT, "model.kv_lora", 32),
    (f"{LATENT} --rotary-scaling-factor 40 --mscale 0.5 --mscale-all-dim 1", "model.rope_attention", 0.865260),
    ("--seed 7", "train.seed", 7),
    (f"{LLAMA} --num-key-value-heads 2", "model.kv_heads", 2),
    (f"{LLAMA} --group-query-attention --num-query-groups 4", "model.kv_heads", 4),
    (f"{MIXTURE} --optimizer muon", "train.optimizer", "muon"),
    ("--optimizer dist_muon --muon-momentum 0.95", "train.muon_momentum", 0.95),
    ("--optimizer muon --muon-extra-scale-factor 0.2", "train.muon_scale", 0.2),
    ("--pipeline-model-parallel-size 4 --enable-zbh1-pipeline", "schedule.name", "zb-d"),
    ("--lr-warmup-iters 0", "train.warmup_steps", 0),
    ("--pipe-parallel-size 2", "parallel.pipeline", 2),
    ("--pipeline-model-parallel-size 2", "parallel.placement", "stages"),
    (MIXTURE, "model.experts_per_token", 2),
    (f"{MIXTURE} --moe-layer-recompute", "schedule.recompute", "experts"),
    (f"{MIXTURE} --recompute-granularity selective --recompute-modules moe", "schedule.recompute", "experts"),
    (f"{MIXTURE} --expert-model-parallel-size 4", "parallel.expert", 4),
    (f"{MIXTURE} --moe-router-topk 4 --moe-ffn-hidden-size 256", "model.expert_ffn", 256),
    (f"{MIXTURE} --moe-layer-freq ([0]*3+[1]*5)", "model.dense_layers", 3),
    (f"{MIXTURE} --moe-router-score-function sigmoid --moe-router-num-groups 4 --moe-router-group-topk 2",
     "model.router_group_top", 2),
    (f"{MIXTURE} --moe-aux-loss-coeff 1e-2", "train.balance_rate", 0.01),
    (f"{MIXTURE} --moe-router-load-balancing-type aux_loss global_aux_loss --moe-aux-loss-coeff 1e-2 1e-3",
     "train.balance_rate", 0.01),
    (f"{MIXTURE} --tensor-model-parallel-size 2 --expert-model-parallel-size 2", "parallel.expert", 4),
    ("--expert-model-parallel-size 2 --moe-router-topk 2", "model.layers", 8),
    (f"{LLAMA} --layernorm-epsilon 1e-6", "model.norm_eps", 1e-6),
    (f"{LLAMA.replace('--normalization RMSNorm', '--RMSNorm')}", "model.family", "llama"),
])
def test_a_flag_becomes_its_key(tmp_path, more, key, value):
    answer = words("--nproc_per_node 8", more)
    _, config = read(answer.stdout)
    section, _, name = key.partition(".")
    assert config[section][name] == (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value)
    assert plan(tmp_path, config, *B200)["step_ms"] > 0


@pytest.mark.parametrize("more, sentence", [
    (f"{MIXTURE} --expert-model-parallel-size 8", "over 8 ranks (ZeRO-1), which saves about 0.1 GiB per rank"),
    (f"{MIXTURE} --expert-model-parallel-size 2", "--use-distributed-optimizer is not given: every data rank holds all"
     " optimizer state there; here it is sharded over 8 ranks (ZeRO-1), which saves about 0.6 GiB per rank"),
    ("", "--attention-backend is not given: flash attention is planned"),
    ("--transformer-impl local --recompute-activations", "(no --use-flash-attn), nor planned so"),
    ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 4",
     "inputs of one in 4 layers are kept there"),
    ("--lr-decay-style inverse-square-root", "--lr-decay-style inverse-square-root: cosine is planned"),
    ("--lr-decay-style WSD --lr-wsd-decay-iters 10", "--lr-wsd-decay-style exponential: a linear decay is planned"),
    ("--disable-bias-linear", "--disable-bias-linear: GPT's linear layers are planned with biases"),
    ("--position-embedding-type none", "--position-embedding-type none: GPT's learned positions are planned"),
    ("--use-megatron-fsdp", "--use-megatron-fsdp: parameters are not sharded over data ranks here"),
    ("--hidden-dropout 0.1", "--hidden-dropout 0.1: there is no dropout here"),
    ("--optimizer muon --muon-scale-mode shape_scaling",
     "--muon-scale-mode shape_scaling: updates are scaled by sqrt(max(out, in)) here"),
    ("--optimizer muon", "--muon-nesterov is not given: Nesterov's momentum is used here"),
    (f"{MIXTURE} --fp8-format hybrid", "fp8 (delayed, hybrid): a mixture of experts is planned in bf16"),
    (f"{MIXTURE} --moe-expert-capacity-factor 1.5", "--moe-expert-capacity-factor 1.5: no token is dropped here"),
    (f"{LATENT} --fp8-format hybrid", "fp8 (delayed, hybrid): latent attention is planned in bf16"),
    (LATENT, "--qk-layernorm is not given: norms of the compressed rows are planned"),
    (f"{MIXTURE} --moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-2",
     "--moe-router-load-balancing-type seq_aux_loss: the loss of each microbatch balances experts here"),
    ("--init-method-xavier-uniform", "--init-method-xavier-uniform: weights start as --init-method-std says here"),
    ("--phase-transition-iterations 50", "--phase-transition-iterations 50: the data are of one kind"),
    ("--te-precision-config-file a.yaml", "--te-precision-config-file a.yaml: is not read; all products of the layers"),
    ("--attention-head-type multiquery", "--attention-head-type multiquery: every head has keys and values of its own"),
    ("--main-grads-dtype bf16", "--main-grads-dtype bf16: gradients, masters and moments are"),
    ("--datacenter 3", "--datacenter 3: not known here; their effect is not planned"),
    ("--moe-num-experts 64", "--moe-num-experts 64: not known here; their effect is not planned"),
    ("--use-checkpoint-args", "--use-checkpoint-args: a checkpoint's settings of the model replace flags there"),
    ("--context-parallel-size 2", "--cp-comm-type p2p: context ranks gather keys and values here"),
    (f"{MIXTURE} --expert-model-parallel-size 2", "--moe-token-dispatcher-type is allgather, its default"),
    (f"{MIXTURE} --moe-dispatch-fwd-dtype mxfp8", "--moe-dispatch-fwd-dtype mxfp8: rows are exchanged in bf16 here"),
])
def test_a_flag_without_a_key_is_named_with_its_effect(more, sentence):
    answer = words("--nproc_per_node 8", more)
    assert sentence in answer.stdout, answer.stderr + answer.stdout


def test_fp16_sums_gradients_in_16_bits_unless_a_flag_says_otherwise():
    for flag, said in (("", True), ("--accumulate-allreduce-grads-in-fp32", False)):
        answer = script("import.py", "--gpus", "8", "megatron", *SMALL.replace("--bf16", f"--fp16 {flag}").split())
        assert ("gradients are summed in fp32 here: 2 bytes per parameter more" in answer.stdout) == said


@pytest.mark.parametrize("more", [
    "--recompute-num-layers 3", "--recompute-granularity selective --recompute-method uniform",
    "--num-layers-per-virtual-pipeline-stage 2", "--microbatch-group-size-per-virtual-pipeline-stage 4",
    "--num-query-groups 4", "--rope-scaling-factor 4 --swiglu --normalization RMSNorm --position-embedding-type rope",
    "--fp8-recipe mxfp8", "--muon-momentum 0.8", "--lr-warmup-fraction 0.1 --lr-warmup-iters 7", "--num-experts 0",
    "--tp-comm-overlap", "--main-grads-dtype fp32", "--softmax-type vanilla", "--attention-head-type multihead",
    "--num-distributed-optimizer-instances 1", "--rotary-interleaved", "--recompute-modules 1e400",
    "--recompute-modules 1.2.3",
])
def test_what_is_read_and_not_used_is_named(more):
    answer = words("--nproc_per_node 8", more)
    names = [word for word in more.split() if word.startswith("--") and word not in LLAMA
             and word != "--recompute-granularity"]
    assert re.search(rf"# without effect on the plan: .*{names[-1]}\b", answer.stdout), answer.stdout


@pytest.mark.parametrize("tokenizer, size", [
    ("meta-llama/Llama-4-Scout-17B-16E", 202048), ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 128256),
    ("meta-llama/Llama-3.2-1B", 128256), ("/data/llama-65b/tokenizer.model", 32000),
    ("/data/llama-30b/tokenizer.model", 32000),
    ("NousResearch/Llama-2-7b", 32000), ("deepseek-ai/DeepSeek-V3", 129280), ("meta-llama/Llama-9", None),
    ("nemo_minitron/multiMixV8.vocab.json --tokenizer-type TikTokenizer", 131072),
])
def test_the_tokenizer_says_the_vocabulary(tokenizer, size):
    small = SMALL.replace("--vocab-size 1000", f"--tokenizer-model {tokenizer}")
    answer = script("import.py", "--gpus", "8", "megatron", *small.split(), code=2 if size is None else 0)
    if size is None:
        assert "--vocab-size: is missing" in answer.stderr
    else:
        assert read(answer.stdout)[1]["model"]["vocab"] == size


def test_what_a_script_cannot_know_is_named(tmp_path):
    run = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL} $EXTRA --seed 3\n"
    comments, config = converted(tmp_path, "megatron", f"source cluster.sh\n{run}")
    unsaid, _ = converted(
        tmp_path, "megatron",
        f"torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL} --seed $RANDOM --lr $LR --min-lr 6e-4\n")
    for flag, name, value in (("--seed", "RANDOM", "1234"), ("--lr", "LR", "3e-4")):
        said = f"{flag}: the script does not set ${name}; write {name}=VALUE before its name; {value} is planned"
        assert said in unsaid
    assert "source cluster.sh: is not here" in comments and "$EXTRA: the script does not set this" in comments
    assert config["train"]["seed"] == 3
    (tmp_path / "cluster.sh").write_text("EXTRA='--lr 1e-3'\n")
    comments, config = converted(tmp_path, "megatron", f"source cluster.sh\n{run}")
    assert "cluster.sh" not in comments and config["train"]["lr"] == 1e-3
    (tmp_path / "conf").mkdir()
    (tmp_path / "cluster.sh").rename(tmp_path / "conf/cluster.sh")
    comments, config = converted(tmp_path, "megatron", f"source $(dirname $0)/conf/cluster.sh\n{run}")
    assert "cluster.sh" not in comments and config["train"]["lr"] == 1e-3


def test_a_branch_that_depends_on_what_a_script_does_not_say_is_named(tmp_path):
    text = ("if [ $KIND = long ]; then MORE='--seq-length 4096'; fi\nif nvidia-smi | grep H100; then"
            " EIGHT='--fp8-format hybrid'; fi\n"
            "if [ -z $NAME ]; then NAME=x; fi\ncase $(hostname) in a*) WORLD=3;; esac\nwhile read -r line; do"
            " LIST+=$line; done\n"
            f"torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL} $MORE $EIGHT\n")
    comments, config = converted(tmp_path, "megatron", text)
    assert "line 1 depends on $KIND, is read as false, and sets MORE" in comments
    assert "line 2 depends on `nvidia-smi`, is read as true, and sets EIGHT" in comments
    assert "line 4 depends on $(hostname), is read as empty, and sets WORLD" in comments
    assert "the loop of line 5 is not followed and sets LIST" in comments and "line 3" not in comments
    _, config = read(script("import.py", "megatron", "KIND=long", tmp_path / "run.sh").stdout)
    assert config["model"]["seq_len"] == 4096


@pytest.mark.parametrize("before, between, after", [
    ("if [ -d $DIR ]; then", "; exit; fi;", ""), ("if [ -d $DIR ]; then", "; else", "; fi"),
    ("case $SIZE in big)", ";; *)", ";; esac"), ("[ -d $DIR ] &&", "||", ""),
    ("more() {", "; }; if [ -d $DIR ]; then more; else", "; fi"),
])
def test_a_branch_that_starts_another_run_is_named(tmp_path, before, between, after):
    run = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL}"
    comments, config = converted(tmp_path, "megatron", f"{before} {run} --seed 1 {between} {run} --seed 2 {after}")
    assert config["train"]["seed"] == 2
    assert re.search(r"line 1 depends on (the file )?\$\w+, is read as \w+, and starts .*pretrain_gpt.py", comments)


def test_an_exit_ends_a_script_unless_it_depends_on_what_the_script_does_not_say(tmp_path):
    run = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SMALL}"
    comments, config = converted(tmp_path, "megatron", f"{run} --seed 1\nexit 0\n{run} --seed 2\n")
    assert "starts 2 runs" not in comments and config["train"]["seed"] == 1
    comments, _ = converted(tmp_path, "megatron",
                            f"MODE=$1\nif [ -z $DATA ]; then exit 1; fi\n[ $MODE = long ] && L=9\n{run}\n")
    assert "line 3 depends on $1, is read as false, and sets L" in comments
    assert "not followed, since they depend on values that the script does not set: exit in line 2" in comments
    sentence = refused(tmp_path, "megatron", f"A=1\nif [ $A = 1 ]; then exit 3; fi\n{run}\n")
    assert "the script ends in line 2, and no command of the script has --num-layers" in sentence


def test_deepspeeds_json_is_read_beside_megatrons_flags(tmp_path):
    comments, config = converted(tmp_path, "megatron", DEEPSPEED)
    has(config, {"train.global_batch": 16, "schedule.micro_batch": 1, "train.grad_clip": 0.5, "model.layers": 8,
                 "train.precision": "bf16", "schedule.recompute_layers": 8})
    assert "the script starts 2 runs; this is the first" in comments and "attention is not fused there" in comments
    assert "--use-distributed-optimizer is not given" not in comments  # ZeRO-1
    for shards in ("--overlapped-distributed-optimizer", "--optimizer dist_muon"):
        assert "--use-distributed-optimizer is not given" not in words("--nproc_per_node 8", shards).stdout
    more = ('"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8,'
            ' "data_types": {"grad_accum_dtype": "bf16"}')
    text = DEEPSPEED.replace('"train_batch_size": 16, "train_micro_batch_size_per_gpu": 1', more)
    comments, config = converted(tmp_path, "megatron", text.replace('"stage": 1', '"stage": 1, "cpu_offload": true'))
    assert (config["train"]["global_batch"], config["schedule"]["micro_batch"]) == (64, 2)
    assert "8 microbatches (ds.gradient_accumulation_steps) per step on each data rank, 64 sequences" in comments
    assert "memory: ds.zero_optimization.cpu_offload True: optimizer and parameters stay on the GPU" in comments
    assert "precision: ds.data_types.grad_accum_dtype bf16: gradients are summed in fp32 here" in comments
    comments, config = converted(tmp_path, "megatron", text, after=["--global-batch-size", "32", "--clip-grad", "2"])
    assert config["train"]["global_batch"] == 32
    assert "ds.gradient_accumulation_steps 8: --global-batch-size 32 is planned, 4 microbatches" in comments
    assert config["train"]["grad_clip"] == 0.5 and "ds.json says 0.5 for --clip-grad 2; the file is" in comments
    halves = DEEPSPEED.replace('"bf16": {', '"bf16": {"bf16_master_weights_and_grads": true, ')
    comments, _ = converted(tmp_path, "megatron", halves)
    assert "bf16_master_weights_and_grads True: masters, gradients and moments are planned in fp32" in comments
    assert "data_types.grad_accum_dtype is not given: gradients are summed in bf16 there" in comments


def test_torchtitans_names_of_2024_are_read(tmp_path):
    comments, config = converted(tmp_path, "torchtitan", TITAN, "--gpus", "64")
    has(config, {"parallel.tensor": 2, "parallel.pipeline": 4, "parallel.data": 8, "parallel.layers": [9, 8, 8, 7],
                 "train.global_batch": 64, "train.fp8": "tensor", "train.warmup_steps": 50,
                 "schedule.recompute_layers": 4})
    for name in ("training.dtype bfloat16", "optimizer.early_step_in_backward", "job.description"):
        assert name in comments
    assert plan(tmp_path, config, *B200)["step_ms"] > 0
    sentence = refused(tmp_path, "torchtitan", TITAN)
    assert "number of GPUs is not known; give --gpus N" in sentence


def test_torchtitan_counts_embedding_and_output_as_layers_of_the_first_and_last_stage(tmp_path):
    base = EIGHT_B + '[activation_checkpoint]\nmode="none"\n[parallelism]\npipeline_parallel_degree = 4\n'
    _, config = converted(tmp_path, "torchtitan", base, "--gpus", "8")
    assert config["parallel"]["layers"] == [8, 9, 8, 7] and config["train"]["warmup_steps"] == 200
    assert "recompute_layers" not in config["schedule"]
    less = base.replace("degree = 4", "degree = 4\npipeline_parallel_first_stage_less_layers = 0\n"
                        "pipeline_parallel_last_stage_less_layers = 0")
    less += "[lr_scheduler]\nwarmup_steps = 0\n"
    _, config = converted(tmp_path, "torchtitan", less, "--gpus", "8")
    assert "layers" not in config["parallel"] and config["train"]["warmup_steps"] == 0  # 0 is a value
    nested = base.replace('"8B"', '"8B"\nconverters = ["quantize.linear.float8"]')
    nested += '[quantize.linear.float8]\nrecipe_name = "rowwise"\n'
    comments, config = converted(tmp_path, "torchtitan", nested, "--gpus", "8")
    assert config["train"]["fp8"] == "tensor" and "rowwise scales there" in comments and "{" not in comments
    assert plan(tmp_path, config, *B200)["step_ms"] > 0


def test_torchtitans_words_of_8_bits_have_no_effect_without_8_bits(tmp_path):
    table = '[float8]\nenable_fsdp_float8_all_gather = true\nfilter_fqns = ["output"]\n'
    text = EIGHT_B + '[training]\nmixed_precision_reduce = "float32"\n'
    text += "tensor_parallel_degree = 2\nenable_loss_parallel = false\n"
    comments, _ = converted(tmp_path, "torchtitan", text + table, "--gpus", "8")
    assert "memory: training.enable_loss_parallel False: logits stay sharded" in comments
    for name in ("training.mixed_precision_reduce float32", "float8.filter_fqns", "float8.enable_fsdp_float8"):
        assert name in comments.splitlines()[-1]
    text = text.replace('"8B"', '"8B"\nconverters = ["float8"]').replace("float32", "bfloat16")
    comments, _ = converted(tmp_path, "torchtitan", text + table, "--gpus", "8")
    assert "precision: float8.filter_fqns ['output']: all products of the layers" in comments
    assert "mixed_precision_reduce bfloat16: gradients are summed in fp32 here" in comments


def test_bridges_sections_are_read_and_spelled_as_the_file_does(tmp_path):
    text = """
model: {num_layers: 8, hidden_size: 512, num_attention_heads: 8, seq_length: 512, vocab_size: 1000,
        tensor_model_parallel_size: 2, sequence_parallel: true, normalization: RMSNorm, gated_linear_unit: true,
        position_embedding_type: rope, bf16: true}
train: {micro_batch_size: 1, global_batch_size: 16, train_iters: 10}
optimizer: {optimizer: muon, lr: 1.0e-3, muon_extra_scale_factor: 0.2}
scheduler: {lr_warmup_iters: 0}
comm_overlap: {tp_comm_overlap: true, overlap_grad_reduce: true}
dataset: {reset_attention_mask: true, data_path: x}
peft: {dim: 8, alpha: 16}
"""
    comments, config = converted(tmp_path, "bridge", text, "--gpus", "8")
    assert config["parallel"]["overlap"] == "auto" and config["data"]["mask_documents"] == "on"
    assert config["train"]["optimizer"] == "muon" and config["train"]["muon_momentum"] == 0.95
    assert "add_bias_linear false is not given: linear layers have biases there" in comments and "--" not in comments
    assert "peft.dim 8: all parameters are trained here" in comments and "comm_overlap.overlap_grad_reduce" in comments
    text = text.replace("tensor_model_parallel_size: 2, sequence_parallel: true", """pipeline_model_parallel_size: 2,
        microbatch_group_size_per_vp_stage: 4, pipeline_model_parallel_layout: [[embedding, decoder],
        [decoder, decoder], [decoder, decoder, decoder], [decoder, decoder, loss]]""")
    comments, config = converted(tmp_path, "bridge", text + "ddp: {data_parallel_sharding_strategy: no_shard}\n",
                                 "--gpus", "8")
    has(config, {"parallel.layers": [1, 2, 3, 2], "schedule.name": "gis", "schedule.group": 4})
    assert "memory: ddp.data_parallel_sharding_strategy" not in comments  # without FSDP, it has no effect


def test_nanotrons_yaml_is_read(tmp_path):
    comments, config = converted(tmp_path, "nanotron", NANO)
    has(config, {"parallel.data": 4, "train.global_batch": 64, "train.steps": 2000, "train.schedule": "wsd",
                 "train.decay_steps": 400, "train.decay_shape": "1-sqrt", "train.z_loss": 1e-4})
    assert "optimizer.zero_stage 0: every data rank holds all" in comments
    assert "optimizer state there" in comments and "sliding_window_size 64" in comments
    assert "length: data_stages[1].sequence_length 4096: 2048 tokens per sequence are planned" in comments
    assert plan(tmp_path, config, *B200)["step_ms"] > 0
    _, config = converted(tmp_path, "nanotron", NANO.replace("pp_engine: 1f1b, ", ""))
    assert config["schedule"]["name"] == "gpipe"  # its default
    text, model = NANO.replace("lr_decay_steps: 400, ", ""), ("--model", ROOT / "configs/gpt_tiny.yaml")
    comments, config = converted(tmp_path, "nanotron", text, *model)  # its layer is LLaMA's whatever has the sizes
    assert "falls until step 3500 there" in comments and config["model"]["family"] == "llama"
    assert plan(tmp_path, config, *B200)["step_ms"] > 0


def test_nanotron_deals_layers_by_cost_with_the_head_as_one(tmp_path):
    sizes = {"hidden": 4096, "heads": 32, "ffn": 11008, "vocab": 32000, "layers": 32}
    assert nanotron.dealt(sizes, 4) == [9, 8, 8, 7] and nanotron.dealt(sizes, 1) == [32]
    assert nanotron.dealt(sizes | {"vocab": 1 << 20}, 2) == [27, 5]


def test_nemos_yaml_is_read(tmp_path):
    comments, config = converted(tmp_path, "nemo", NEMO)
    has(config, {"model.ffn": 13824, "model.vocab": 32000, "model.tie_embeddings": False, "model.family": "llama",
                 "parallel.data": 4, "parallel.sequence": True, "schedule.chunks": 5, "schedule.recompute_layers": 10,
                 "train.schedule": "cosine", "train.beta2": 0.95, "hardware.gpus_per_node": 8})
    assert "model.attention_type multihead" in comments and "trainer.log_every_n_steps 10" in comments
    assert "unknown" not in comments
    assert plan(tmp_path, config, *B200)["step_ms"] > 0
    unset, _ = converted(tmp_path, "nemo", NEMO.replace("betas:", "grad_sync_dtype: null, betas:") + "  my key: 5\n")
    assert "gradients are summed in" not in unset and "unknown: model.my key 5: not known here" in unset
    changed = NEMO.replace("num_nodes: 4, ", "").replace("granularity: full", "granularity: selective")
    changed = changed.replace("fast-swiglu", "fast-geglu").replace("betas:", "grad_sync_dtype: bf16, betas:")
    changed += "  recompute_modules: [core_attn, layernorm]\n  fp8_params: true\n"
    sentence = refused(tmp_path, "nemo", changed)
    assert "number of GPUs is not known (--nnodes trainer.num_nodes)" in sentence
    comments, config = converted(tmp_path, "nemo", changed, "--gpus", "64")
    assert config["parallel"]["data"] == 8 and config["schedule"]["recompute"] == "pointwise"
    for sentence in ("has an unknown number of nodes of 8 GPUs", "model.activation fast-geglu: the gate is planned",
                     "model.optim.grad_sync_dtype bf16: gradients are summed in fp32", "fp8_params True: parameters"):
        assert sentence in comments
    sentence = refused(tmp_path, "nemo", NEMO + "  teacher: {num_layers: 8}\n")
    assert "model.teacher: distillation cannot be planned" in sentence


OPTIM, SCHED = NEMO.partition("  optim:")[0], "CosineAnnealing, warmup_steps: 500, constant_steps: 0, min_lr: 1.0e-5"
NEMO_2 = OPTIM + "optim: {config: {optimizer: adam, lr: 1.0e-4}, lr_scheduler: {_target_: nemo.%s, max_steps: 5000}}\n"
BRIDGE = OPTIM + "scheduler: {max_steps: 9000}\ntrain: {train_iters: 5000}\noptimizer: {lr: 1.0e-4}\n"
FLEX = "_attn_implementation: flex_attention, flex_attention_mask: document, sliding"


@pytest.mark.parametrize("program, text, keys, sentence", [
    ("torchtitan", EIGHT_B + "[parallelism]\ntensor_parallel_degree = 8\n", {"train.precision": "fp32"},
     "without FSDP, tensor and pipeline ranks compute in fp32"),
    ("torchtitan", EIGHT_B + "[parallelism]\ntensor_parallel_degree = 4\n", {"train.precision": "bf16"},
     "speed: compile.enable is not set: kernels are not fused there"),
    ("torchtitan", EIGHT_B.replace("8B", "8B_flex"), {"model.layers": 32, "data.mask_documents": "on"}, "FSDP"),
    ("torchtitan", EIGHT_B + "[training]\nsteps = 100\n", {"train.warmup_steps": 100, "train.schedule": "constant"},
     "training: norms and biases have weight decay there, none here"),
    ("torchtitan", EIGHT_B + "[lr_scheduler]\ntotal_steps = 20000\ndecay_type = 'sqrt'\n",
     {"train.schedule": "wsd", "train.decay_steps": 9800, "train.decay_shape": "sqrt"},
     "lr_scheduler.total_steps 20000: the learning rate falls until the last step here"),
    ("torchtitan", EIGHT_B + "[activation_checkpoint]\nselective_ac_option = '0'\n", {"schedule.recompute_layers": 32},
     "selective 0: 32 layers of a stage"),
    ("torchtitan", EIGHT_B + "[parallelism]\npipeline_parallel_degree = 4\n[training]\nglobal_batch_size = 64\n",
     {"train.global_batch": 64}, "local_batch_size 8: the pipeline drains 4 times a step there"),
    ("nanotron", NANO.replace("is_llama_config", "attention_bias"), {"model.qkv_bias": False}, "weight decay there"),
    ("nanotron", NANO.replace("is_llama_config", "attention_bias: true, is_qwen2_config").replace("sliding", FLEX),
     {"model.qkv_bias": True, "data.mask_documents": "on"}, "sliding_window_size"),
    ("nanotron", NANO.replace("fp32: true", "fp32: false").replace("0.02", "0.02, scaling_method: NUM_LAYERS"), {},
     "masters, moments and gradients are planned in fp32, 10 bytes per parameter more"),
    ("nanotron", NANO.replace("std: 0.02", "use_mup: true"), {"train.init_std": 0.025}, "use_mup True: all tensors"),
    ("nemo", NEMO.replace("gradient_clip_val: 1.0, ", ""), {"train.grad_clip": 0.0}, ""),
    ("nemo", NEMO + "  use_scaled_init_method: false\n", {}, "use_scaled_init_method False: projections into the"),
    ("nemo", NEMO.replace(f",\n          sched: {{name: {SCHED}}}", ""), {"train.schedule": "constant"}, ""),
    ("nemo", NEMO_2 % "CosineAnnealingScheduler", {"train.schedule": "cosine", "train.warmup_steps": 750}, ""),
    ("nemo", NEMO_2 % "NoamAnnealingScheduler", {}, "NoamAnnealingScheduler NoamAnnealing: cosine is planned"),
    ("bridge", BRIDGE, {"train.schedule": "linear", "train.steps": 5000, "train.grad_clip": 1.0}, "until step 9000"),
])
def test_what_a_program_does_without_being_told_is_planned_or_named(tmp_path, program, text, keys, sentence):
    comments, config = converted(tmp_path, program, text, *(("--gpus", "8") if program == "torchtitan" else ()))
    has(config, keys)
    assert sentence in comments and "scaling_method NUM_LAYERS:" not in comments
    assert plan(tmp_path, config, *B200)["step_ms"] > 0


def test_torchtitan_balances_experts_without_being_told(tmp_path):
    text = '[model]\nname = "%s"\nconverters = ["float8"]\n[parallelism]\nexpert_parallel_degree = 8\n'
    text += "expert_tensor_parallel_degree = 2\n[debug]\nmoe_force_load_balance = true\n"
    for name, model, balance in (("deepseek_v3", "deepseek_v3", "bias"), ("qwen3", "qwen3_30b_a3b", None),
                                 ("llama4", "mixtral_8x7b", None)):
        model = ("--gpus", "64", "--model", ROOT / f"configs/{model}.yaml")
        comments, config = converted(tmp_path, "torchtitan", text % name, *model)
        has(config, {"train.balance": balance, "train.fp8": None, "parallel.expert": 8,
                     "data.mask_documents": "on" if name == "deepseek_v3" else None})
        assert ("a softmax router has no balancing bias here" in comments) == (name == "llama4")
        for sentence in ("fp8: experts and latent attention are planned in bf16", "every expert is whole here",
                         "debug.moe_force_load_balance True: tokens are spread evenly"):
            assert sentence in comments
        assert plan(tmp_path, config, *B200)["step_ms"] > 0


def test_sizes_come_from_a_model_where_the_input_has_none(tmp_path):
    text = ("model: {tensor_model_parallel_size: 2, seq_length: 4096}\n"
            "train: {micro_batch_size: 1, global_batch_size: 64, train_iters: 50}\n")
    assert "give --model FILE with the sizes" in refused(tmp_path, "nemo", text, "--gpus", "8")
    sizes = ("--gpus", "8", "--model", ROOT / "configs/llama3_8b.yaml")
    _, config = converted(tmp_path, "nemo", text, *sizes)
    assert (config["model"]["hidden"], config["model"]["seq_len"], config["parallel"]["data"]) == (4096, 4096, 4)


INPUTS = {"run.sh": ARRAYS, "deepspeed.sh": DEEPSPEED, "titan.toml": TITAN, "nano.yaml": NANO, "nemo.yaml": NEMO}


def reader(path, gpus=None):
    """Returns the Settings, and the function that converts them."""
    if path.suffix == ".sh":
        settings, front, slurm = megatron.read([str(path)])
        return settings, lambda s: megatron.convert(s, gpus, front, slurm)
    module = {"titan": torchtitan, "nano": nanotron, "nemo": nemo}[path.stem]
    return module.read(read_text(path)), lambda s: module.convert(s, gpus)


def dropped(settings, convert):
    """Returns what neither their converter names nor the plan uses: import.py adds these settings at its end."""
    return [settings.said(name) for name in unused(settings, convert)]


def test_no_setting_of_any_input_is_dropped(tmp_path):
    for name, text in INPUTS.items():
        (tmp_path / name).write_text(text)
        assert dropped(*reader(tmp_path / name, 64 if name == "titan.toml" else None)) == []


def test_a_setting_that_nobody_reads_is_found(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(ARRAYS)
    settings, convert = reader(path)

    def forgetful(s):
        s.values.pop("untie-embeddings-and-output-weights", None)
        return convert(s)

    assert dropped(settings, forgetful) == ["--untie-embeddings-and-output-weights"]


ODD = ["0", "-1", "1e400", "nan", "inf", "", "x", "9" * 40, "1.5", "true", None, True, False, [1, 2], {}, 0, -1, 1e30,
       float("nan"), "[[", "\0", "1 2 3"]


@pytest.mark.parametrize("name", INPUTS)
def test_no_value_of_a_setting_ends_in_a_traceback(tmp_path, name):
    path, drawn = tmp_path / name, random.Random(name)
    path.write_text(INPUTS[name])
    settings, convert = reader(path, 64)
    for key in settings.values:
        for value in [*ODD, drawn.choice(ODD)]:
            other = copy.deepcopy(settings)
            other.values[key] = (key, value)
            try:
                json.dumps([*other.comments(), convert(other)])
            except Failure as failure:
                assert str(failure)


@pytest.mark.parametrize("name", INPUTS)
def test_no_cut_of_an_input_ends_in_a_traceback(name):
    drawn = random.Random(name)
    text = INPUTS[name]
    pieces = ['"', "'", "`", "$(", "${", "((", "))", "}", ")", "fi\n", "done\n", ";;", "<<E\n", "{", "[[", "|", "&&",
              "\\", "\n", "[", ": "]
    for _ in range(300):
        at = drawn.randrange(len(text) + 1)
        changed = drawn.choice([text[:at], text[at:], text[:at] + drawn.choice(pieces) + text[at:]])
        try:
            if name.endswith(".sh"):
                settings, front, slurm = megatron.read(["x " + changed])
                megatron.convert(settings, 64, front, slurm)
            else:
                program = {"titan.toml": torchtitan, "nano.yaml": nanotron, "nemo.yaml": nemo}[name]
                program.convert(program.read(changed), 64)
        except Failure:
            pass


@pytest.mark.parametrize("text", [
    "date >f", ": >g; date >>f", "python x >f", "printf %s 3 >f", "sed -i s/2/3/ f", "rm -f f", "cp $X f", "mv g f",
    "mv f g", "date | tee f", "{ echo 3; date; } >f", "while true; do date; break; done >f",
])
def test_a_file_that_a_command_writes_is_not_what_it_was(text):
    shell = Script()
    shell.run(f"echo 2 >f; {text}; run $(cat f)")
    assert unknown_in(shell.commands[-1][1]) == "$(cat f)"
    shell = Script(read={"f": "1\n"}.get)
    shell.run("echo 2 >>f; run $(cat f)")
    assert shell.commands == [["run", "1", "2"]]


@pytest.mark.parametrize("text", [
    "X=1; printf -v X 2", "X=$(echo 7/2 | bc -l)", "X=$(echo -e '1\\n2')", "X=$((08))",
    "X=abc; X=${X:$Y}", "X=a; X=${X/$Y/b}", "X=a; X=${X/#a/b}", "X=$(echo 2+3 | bc)", "X=$((2 ** 2))",
    "false; X=$?", "X=a; X=$((X > Y))", "read X <<<'a\\b'", "A=(1 2); unset A[1]; X=${A[@]}",
    "read -d : X <<<1:2", "read -n 1 X <<<12", "read -rN1 X <<<12", "read -d: X <<<1:2", "mapfile -d , X <<<1,2",
    "mapfile X <<<2", "X=$(<no_file)", "X=$(date; exit 0)", "[ $# = 1 ]; X=$(exit; echo 3)",
    "X=1; ((2 > (X = 3)))", "X=$(echo 1 | tee f)", "X=<path to the data>", "X=/a/<b>/c",
    "getopts a X", "read -a <<<1; X=$REPLY",
])
def test_what_is_not_followed_is_not_known(text):
    shell = Script()
    shell.run(f"{text}; run \"$X\"")
    assert unknown_in(shell.commands[-1][1])


@pytest.mark.parametrize("text, what", [("declare -l X=A", "declare -l"), ("shopt -s nocasematch", "shopt -s nocasema"),
                                        ("[[ a == !(b) ]]", "!(...)"), ("select x in a b; do run $x; done", "select"),
                                        ("X=a; X=${X##+(a)}", "+(...)"), ("declare -i X=1+1", "declare -i"),
                                        ("case a in a) run 3;& b) run 4; esac", ";&"), ("run {a..c}", "{a..c}"),
                                        ("set -- -a; getopts a X", "getopts"), ("X=1,2; IFS=,; run $X", "a word that"),
                                        ("declare -A M=([a]=1 [b]=2); run ${!M[@]}", "the order of M's items"),
                                        ("for i in 1; do for j in 1; do break 2; done; done", "break 2"),
                                        ("run {1..999}{1..99}{1..9}", "a word with braces for more than 1000 words")])
def test_what_is_not_read_is_refused_with_its_line(text, what):
    with pytest.raises(Failure, match=f"^line 2: {re.escape(what)}.* is not read; give the flags themselves$"):
        Script().run(f"run 1\n{text}\nrun 2")


@pytest.mark.parametrize("text, commands", [
    ("A=(1 2 '3 4')\nrun ${A[@]} \"${A[@]}\" ${#A[@]} ${A[1]}",
     [["run", "1", "2", "3", "4", "1", "2", "3 4", "3", "2"]]),
    ("X=${Y:-4}; run $((X * 2 + 1)) ${X}a '$X' \"$X\"", [["run", "9", "4a", "$X", "4"]]),
    ("if [ $A = b ]; then run 1; elif [[ -z $A && 2 -gt 1 ]]; then run 2; else run 3; fi", [["run", "2"]]),
    ("f() { run $1 $#; }\nf a b", [["run", "a", "2"]]),
    ("for i in {1..3}; do run $i; done", [["run", "1"], ["run", "2"], ["run", "3"]]),
    ("case 7B in 70B) run 1;; 7*) run 2;; *) run 3;; esac", [["run", "2"]]),
    ("C=\"run --a 1\"\nC+=\" --b 2\"\neval $C", [["run", "--a", "1", "--b", "2"]]),
    ("run a \\\n  b # c\n# d\nrun e 2>&1 | tee log", [["run", "a", "b"], ["run", "e"]]),
    ("F=/a/b.tar.gz; run ${F##*/} ${F%.gz} ${F/a/c} ${F,,}",
     [["run", "b.tar.gz", "/a/b.tar", "/c/b.tar.gz", "/a/b.tar.gz"]]),
    ("[ 1 -lt 2 ] && A=1 || A=2\nrun $A", [["run", "1"]]),
    ("D=$(pwd); srun -N 2 bash -c \"run $((1+1))\"", [["srun", "-N", "2", "bash", "run", "2"]]),
    ("X=1; f() { local X=2; Y=3; }\nf; run $X $Y", [["run", "1", "3"]]),
    ("X=1; (X=2; run $X); echo | X=3; { X=4; } & run $X", [["run", "2"], ["run", "1"]]),
    ("X=0; X=1 run $X; run $X", [["run", "0"], ["run", "0"]]),
    ("set -- a b c d; shift 2; run $1 $# ${@:2}", [["run", "c", "2", "d"]]),
    ("run a; (run b; exit; run c); run d; exit 0; run e", [["run", "a"], ["run", "b"], ["run", "d"]]),
    ("exec run a\nrun b", [["run", "a"]]),
    ("f() { return 1; }\nif f; then run 1; else run 2; fi", [["run", "2"]]),
    ("set -- --tp 4 x; while [ $# -gt 0 ]; do case $1 in --tp) T=$2; shift 2;; *) shift;; esac; done; run $T",
     [["run", "4"]]),
    ("for i in 1 2 3; do [ $i = 2 ] && break; run $i; done; for ((i=1; i<3; i++)); do run $i; done",
     [["run", "1"], ["run", "1"], ["run", "2"]]),
    ("X=2; let X=X*3; ((X+=1)); run $X $((X > 2 ? X * 2 : 0)) $((X == 7 && !0))", [["run", "7", "14", "1"]]),
    ("declare -A M=([a]=1 [b]=2); M[c]=3; K=b; run ${M[$K]} ${M[c]} ${#M[@]}", [["run", "2", "3", "3"]]),
    ("A=(1 2 3); run ${A[@]:1:1} ${A[@]#1} $(echo \"${A[*]}\") $(IFS=,; echo \"${A[*]}\")",
     [["run", "2", "2", "3", "1", "2", "3", "1,2,3"]]),
    ("T=1; bash -c 'run ${T:-0}'; export T; bash -c 'run $T'", [["bash", "run", "0"], ["bash", "run", "1"]]),
    ("[[ ( a = b || 2 -gt 1 ) && ! -z x ]] && run 1; [ 1 = 1 -a 1 = 2 ] || run 2", [["run", "1"], ["run", "2"]]),
    ("set -- a; run ${2:-d} \"$2\"; f() { run ${1:+p} x$1; }; f; [[ $X -eq 0 && b -lt 1 ]] && run 0",
     [["run", "d", ""], ["run", "x"], ["run", "0"]]),
    ("run {a,b}{1..9..4} '{1..2}' \"{a,b}\" ${X:-{a,b}} {3..1}; A=({1..2} x); run ${#A[@]}",
     [["run", "a1", "a5", "a9", "b1", "b5", "b9", "{1..2}", "{a,b}", "{a,b}", "3", "2", "1"], ["run", "3"]]),
    ("IFS=, read -ra A <<<1,2,3; run ${#A[@]} ${A[2]}; read -r B C <<<'x y z'; run $B \"$C\"",
     [["run", "3", "3"], ["run", "x", "y z"]]),
    ("read -r -d '' A <<E || true\n --a 1\n --b $((1+1))\n E\nE\nrun $A", [["run", "--a", "1", "--b", "2", "E"]]),
    ("sizes() { case $1 in 7b) echo --l 32;; *) return 1;; esac; }; A=$(sizes 7b); run $A", [["run", "--l", "32"]]),
    ("X=$(expr 3 + 4 2>/dev/null) Y=`expr 3 \\* 4`; echo a 2>&1 >f 1>>f; echo b >&2; run $X $Y $(cat f)"
     " $(echo c >&2)",
     [["run", "7", "12", "a"]]),
    ("cat <<E >f\nx\nE\nIFS=: read -r A B <<<u:v; A=(1 2); run $(cat f) $B $(IFS=-; echo \"${A[*]}\")",
     [["run", "x", "v", "1-2"]]),
    ("size() { case $1 in 7b) echo 3;; *) echo 4; exit 1;; esac; }; run $(size 7b) $(size 8b) \"$(exit 1; echo 3)\"",
     [["run", "3", "4", ""]]),
    ("echo 1 >f; run $(cat f); >f; echo 3 &>>f; { echo 4; echo 5 >&1; } >>f; run $(cat f) $(echo 6 >&1)",
     [["run", "1"], ["run", "3", "4", "5", "6"]]),
    ("exit | cat; f() { echo 0 | { echo 1; return; }; echo 2; }; X=$(f); run $X; f | return; run 3",
     [["run", "1", "2"], ["run", "3"]]),
    ("F=/a/b; P=/; run ${F%/*} ${F#/} ${F#\"$P\"} ${F##*'/'} ${F%c}; L=[1]; [ $L = [1] ] && run 1;"
     " [ 7B = '7*' ] || run 2; [[ b > a && a < b ]] && run 3; [ a \\> b ] || run 4",
     [["run", "/a", "a/b", "a/b", "b", "/a/b"], *(["run", each] for each in "1234")]),
    ("A=(1 2 33); S=1; X=abc; A[${#A[@]}]=4; run ${A[@]:S:1} ${A[@]:$S} ${#A[2]} $((${#A[@]} * S + S)) ${X:S} ${X: -2}",
     [["run", "2", "2", "33", "4", "2", "5", "bc", "bc"]]),
    ("IFS=$'\\n' read -d '' -ra A <<<$'c d\\ne'; run \"$(echo \"a)b\")\" \"${A[0]}\";"
     " for ((i = 0; i < ${#A[@]}; i++)); do run $i; done", [["run", "a)b", "c d"], ["run", "0"], ["run", "1"]]),
    ("M=a/b/c; P=/x; X=/x/it\\'s.y; run ${M//\\//_} ${M/\\//_} \"${X//\\'/}\" ${X/\\./-} ${X/$P/q} ${X/.y/\\/z}",
     [["run", "a_b_c", "a_b/c", "/x/its.y", "/x/it's-y", "q/it's.y", "/x/it's/z"]]),
    ("IFS=$' \\t\\n'; read -ra A <<<'c d'; read a b <<<'c d'; run ${#A[@]} $b", [["run", "2", "d"]]),
    ("run {01..03} {8..010..2} {-01..0}", [["run", "01", "02", "03", "008", "010", "-01", "000"]]),
    ("[[ ab == \"a*\" ]] || run 1; X='a*'; [[ ab == $X && ab != \"$X\" ]] && run 2;"
     " case ab in 'a*') ;; [^b]?) run 3; esac",
     [["run", "1"], ["run", "2"], ["run", "3"]]),
    ("[[ x7 == x[[:digit:]] && aab =~ ^a+(b)$ ]] && run 1; X='  a'; run \"${X##* }\";"
     " [[ a.c =~ \"a.c\" && ! abc =~ 'a.c' && v12 =~ ^v([0-9]+)$ ]] && run ${BASH_REMATCH[1]}",
     [["run", "1"], ["run", "a"], ["run", "12"]]),
    ("X=aXbX; run ${X//[ab]/-} ${X/a*b/} \"${X%'X'}\"; Y='a*b'; run ${Y%\"*b\"} ${X: -9:1}",
     [["run", "-X-X", "X", "aXb"], ["run", "a"]]),
    ("A=([5]=x [2]=y); A[9]=z; run ${A[@]} ${!A[@]} x${A[3]}; A[5]+=w; A+=v; run ${A[5]} ${A[0]}",
     [["run", "y", "x", "z", "2", "5", "9", "x"], ["run", "xw", "v"]]),
    ("X=7; run $((-X/2)) $((-X%3)) $((3 && 5)) $((3 > 2 > 1)) $((1 ? 2 : 0 ? 3 : 4)) $((010 + 0x10))"
     " $((X++)) $((X += 0, ++X)) $((0 && 1 / 0)) $((9223372036854775807 + 1)) $[X - 1]",
     [["run", "-3", "-1", "1", "0", "2", "24", "7", "9", "0", "-9223372036854775808", "8"]]),
    ("((X = 3, X *= 4, X++)); A=(1 2); ((A[ 1 ] *= 4)); Y='X + 1';"
     " run $X ${A[1]} $((Y * 2)) $((X = 5))",
     [["run", "13", "8", "28", "5"]]),
    ("f() { return 3; }; f && run 1; X=$(false) || run 2; return; run 3",
     [["run", "2"], ["run", "3"]]),
    ("IFS=,; set -- a b; run \"$*\" \"x$@y\"; IFS=' '; X=' a '; B=();"
     " run b${X}c $(echo {1,2})d x\"${B[@]}\"",
     [["run", "a,b", "xa", "by"], ["run", "b", "a", "c", "1", "2d", "x"]]),
    ("set -- a b; X=$@; run \"$X\" $11 $'\\x41\\tb' `echo \\`echo 3\\``;"
     " f() { local X={1,2}; run $X; }; f",
     [["run", "a b", "a1", "A\tb", "3"], ["run", "2"]]),
    ("Y=2; run \"${X:-'a b'}\" ${X:-'a b'} ${X:-\"a b\"c} ${X:-a\\ $Y d} ${X:-\\$a}; "
     " Z=${X:-'a  b'\"$Y\"}; run \"$Z\"; run ${A[@]-none}",
     [["run", "'a b'", "a b", "a bc", "a 2", "d", "$a"], ["run", "a  b2"], ["run", "none"]]),
    ("X=; [ -n $X ] && run 1; [ $Y != b ] || run 2; [ a = ] || run 3; [[ -v A[1] ]] || run 4",
     [["run", "1"], ["run", "2"], ["run", "3"], ["run", "4"]]),
    ("set -- o; cat >a.sh <<E\nrun \\$1 $1\nexit\nE\nbash a.sh i; run $1", [["bash", "run", "i", "o"], ["run", "o"]]),
])
def test_a_shells_words_are_expanded_as_bash_does(tmp_path, text, commands):
    shell = Script()
    shell.run(text)
    assert shell.commands == commands
    if shutil.which("bash") and "srun" not in text:
        (tmp_path / "run").write_text("#!/bin/bash\nIFS=@\necho \"run@$*\" >>$LOG\n")
        (tmp_path / "run").chmod(0o755)
        log = tmp_path / "ran.txt"
        around = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": log}
        subprocess.run(["bash", "-c", text], cwd=tmp_path, env=around, capture_output=True, check=False, timeout=60)
        ours = ["@".join(words[words.index("run") :]) for words in commands]
        assert sorted(log.read_text().splitlines()) == sorted(ours)
