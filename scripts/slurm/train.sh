#!/usr/bin/env bash
# One Slurm job's training, from wherever its checkpoints are; the .sbatch files beside it end in a call of this.
#
#   scripts/slurm/train.sh PROGRAM CONFIG CHECKPOINTS [more arguments of PROGRAM]
#
# A run that was asked to stop saves its checkpoint and ends with code 3. Then, and only then, the job goes back into the queue
# and the next start goes on from that checkpoint: what fails with another code would fail again.
set -uo pipefail

fail() {
    echo "train.sh: $*" >&2
    exit 2
}

[ $# -ge 3 ] || fail "usage: train.sh PROGRAM CONFIG CHECKPOINTS [more arguments of PROGRAM]"
program=$1 config=$2 checkpoints=$3
shift 3

job=${SLURM_JOB_ID:-}
[ -n "$job" ] || fail "this runs inside a Slurm job: sbatch scripts/slurm/llama_tiny.sbatch"
[ -x "$program" ] || fail "$program is not in $PWD; run make there, and submit the job from the folder of the programs"
[ -r "$config" ] || fail "$config cannot be read from $PWD on $(hostname)"
command -v srun >/dev/null || fail "srun is not in PATH on $(hostname)"
srun --mpi=list 2>&1 | grep -qw pmix ||
    fail "this Slurm has no PMIx plugin, without which ranks do not find each other; docs/slurm.md says what to do"

# Ranks of a node follow each other (block), since placement counts on it. With --kill-on-bad-exit the first rank that ends with code 3
# would have the others killed, and their code might count; a rank that fails takes the others with it by itself. Nothing binds tasks
# to GPUs: each sees all that the job has on its node and takes its own by its number there. Since Slurm 22.05 srun does not take over
# --cpus-per-task by itself.
srun --mpi=pmix --kill-on-bad-exit=0 --distribution=block ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
    "$program" -c "$config" -o "checkpoint.dir=$checkpoints" --resume-if-any "$checkpoints" "$@"
code=$?

if [ $code = 3 ]; then
    echo "train.sh: stopped on request with a checkpoint in $checkpoints; job $job goes back into the queue" >&2
    scontrol requeue "$job" || echo "train.sh: job $job cannot be requeued; submit it again to go on" >&2
fi
exit $code
