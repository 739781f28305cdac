#!/usr/bin/env bash
# Runs the training of one Slurm job from its newest checkpoint; train.sbatch calls it in the job.
#
#   scripts/slurm/train.sh PROGRAM CONFIG CHECKPOINTS [more arguments of PROGRAM]
#
# A run that was asked to stop saves its checkpoint and ends with code 3. Only then is the job requeued, and the next
# start resumes from that checkpoint; a job that fails with another code would fail again. When a rank is lost (it died,
# fell silent, or nothing moved), the ranks restart within the job. If the job has more nodes than its ranks need, each
# start leaves out nodes that do not start the program.
set -uo pipefail

fail() {
    echo "train.sh: $*" >&2
    exit 2
}

[ $# -ge 3 ] || fail "usage: train.sh PROGRAM CONFIG CHECKPOINTS [more arguments of PROGRAM]"
program=$1 config=$2 checkpoints=$3
shift 3

job=${SLURM_JOB_ID:-}
[ -n "$job" ] || fail "this runs inside a Slurm job: scripts/slurm/train.sbatch $config"
[ -x "$program" ] || fail "$program is not in $PWD; run make there, and submit the job from the folder of the programs"
[ -r "$config" ] || fail "$config cannot be read from $PWD on $(hostname)"
command -v srun >/dev/null || fail "srun is not in PATH on $(hostname)"
srun --mpi=list 2>&1 | grep -qw pmix ||
    fail "this Slurm has no PMIx plugin, without which ranks do not find each other; docs/slurm.md says what to do"

# Ranks of a node are consecutive (block), since placement relies on it. With --kill-on-bad-exit the first rank that
# ends with code 3 would have the other ranks killed, and their code might count. A rank that fails ends the other ranks
# by itself. Nothing binds tasks to GPUs: each task sees all GPUs of the job on its node, and chooses one by its number
# there. Since Slurm 22.05 srun does not inherit --cpus-per-task. srun waits a minute for the other ranks after the
# first has ended: a rank with a stopped supervisor ends in no other way.
start_ranks() {
    srun --mpi=pmix --kill-on-bad-exit=0 --wait=60 --distribution=block ${where[@]+"${where[@]}"} \
        ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
        "$program" "--config=$config" -o "checkpoint.dir=$checkpoints" --resume-if-any "$checkpoints" "$@"
}

# Prints the number of ranks of the configuration; nothing if it is unknown.
count_ranks() {
    "$program" -q "--config=$config" "$@" --plan --json 2>/dev/null |
        grep -o '"world":[0-9]*' | head -1 | cut -d: -f2
}

# Succeeds if the node starts the program; otherwise prints the problem to stderr.
starts_on() {
    timeout 60 srun --mpi=none --nodes=1 --ntasks=1 --nodelist="$1" \
        "$(dirname "$0")/check_node.sh" "$program" >/dev/null
}

# Sets `where` to srun's options for leaving out nodes if the job has nodes to spare; otherwise to nothing.
choose_nodes() {
    local per_node=${SLURM_NTASKS_PER_NODE:-} nodes=${SLURM_JOB_NUM_NODES:-1} needed node good=() tried
    where=()
    [[ $per_node =~ ^[1-9][0-9]*$ ]] && [ "$nodes" -gt 1 ] && [ "${ranks:=$(count_ranks "$@")}" ] || return 0
    needed=$(((ranks + per_node - 1) / per_node))
    [ $needed -lt "$nodes" ] || return 0
    tried=$(mktemp -d) || fail "cannot make a folder in ${TMPDIR:-/tmp} on $(hostname)"
    for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
        { starts_on "$node" && : >"$tried/$node"; } &
    done
    wait
    for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
        if [ -e "$tried/$node" ]; then
            good+=("$node")
        else
            echo "train.sh: $node does not start $program and is left out" >&2
        fi
    done
    rm -rf "$tried"
    [ ${#good[@]} -ge $needed ] || fail "$ranks ranks take $needed nodes, and ${#good[@]} of $nodes start the program"
    good=("${good[@]:0:needed}")
    where=("--nodes=$needed" "--ntasks=$ranks" "--ntasks-per-node=$per_node" "--nodelist=$(IFS=,; echo "${good[*]}")")
}

# Like train.max_restarts, with a default of 10: when a rank died or fell silent, the ranks restart from the newest
# checkpoint. A loss before any new step counts twice. If the same rank is lost twice at the same action, the job ends.
# The ranks record a loss in a file.
left=10 furthest=0 last=
for word in "$@"; do
    case $word in train.max_restarts=* | -otrain.max_restarts=* | --override=train.max_restarts=*) left=${word##*=} ;; esac
done
# Rank 0 writes the file, maybe on another node. The folder of the programs is on all nodes.
TRAINER_LOSS=$(mktemp "$PWD/.lost.XXXXXX") || fail "cannot make a file in $PWD on $(hostname)"
# The ranks read this copy, so that edits of the file during training take effect only in the next job.
{ TRAINER_CONFIG=$(mktemp "$PWD/.config.XXXXXX") && cat "$config" >"$TRAINER_CONFIG"; } || fail "cannot copy $config"
export TRAINER_LOSS TRAINER_CONFIG
trap 'rm -f "$TRAINER_LOSS" "$TRAINER_CONFIG"' EXIT
while :; do
    : >"$TRAINER_LOSS"
    choose_nodes "$@"
    start_ranks "$@"
    code=$?
    lost=$(cat "$TRAINER_LOSS")
    # A code above 3 comes from srun: a task was killed, for example because a node was lost.
    if [ $code -eq 0 ] || { [ $code -le 3 ] && [ -z "$lost" ]; }; then break; fi
    read -r rank step action <<<"${lost:--1 0}"
    cost=1
    if [ -n "$last" ] && [ "$step" -le "$furthest" ]; then cost=2; fi
    if [ "$rank" -ge 0 ] && [ "$lost" = "$last" ]; then
        echo "train.sh: rank $rank was lost twice at $action; submit the job again to continue" >&2
        break
    elif [ "$left" -lt $cost ]; then
        echo "train.sh: no restart is left (train.max_restarts); submit the job again to continue" >&2
        break
    fi
    left=$((left - cost)) last=${lost:-none}
    if [ "$step" -gt "$furthest" ]; then furthest=$step; fi
    echo "train.sh: the ranks ended with code $code at step $step; starting them again; restarts left: $left" >&2
done

if [ "$code" = 3 ]; then
    echo "train.sh: stopped on request with a checkpoint in $checkpoints; job $job goes back into the queue" >&2
    scontrol requeue "$job" || echo "train.sh: job $job cannot be requeued; submit it again to continue" >&2
fi
exit "$code"
