#!/usr/bin/env bash
# Exits with code 0 if this node starts the program and has all GPUs of the job on this node. train.sh runs it on every
# node if the job has more nodes than its ranks need.
#
#   scripts/slurm/check_node.sh PROGRAM
set -uo pipefail

# Prints the UUID of each device in `nvidia-smi -L`, one per line: of a GPU, or of its instances if it is split by MIG.
list_devices() {
    awk '
        function flush() { if (gpu != "") print gpu; gpu = "" }
        { uuid = $0; sub(/.*UUID: /, "", uuid); sub(/\).*/, "", uuid) }
        /^GPU [0-9]+:/ { flush(); gpu = uuid }
        /^ +MIG / { gpu = ""; print uuid }
        END { flush() }' <<<"$1"
}

# Prints how many of the devices CUDA_VISIBLE_DEVICES leaves visible. CUDA numbers them as nvidia-smi does, accepts an
# abbreviated UUID, and ignores everything after the first entry that does not exist (CUDA C++ programming guide, "CUDA
# environment variables"). nvidia-smi ignores the variable.
count_visible() {
    local devices=$1 entries entry count=0 all
    all=$(grep -c . <<<"$devices")
    [ "${CUDA_VISIBLE_DEVICES+set}" ] || { echo "$all" && return; }
    IFS=, read -ra entries <<<"$CUDA_VISIBLE_DEVICES"
    for entry in ${entries[@]+"${entries[@]}"}; do
        if [[ $entry =~ ^[0-9]+$ ]]; then
            [ "$entry" -lt "$all" ] || break
        else
            [[ -n $entry && $'\n'$devices == *$'\n'"$entry"* ]] || break
        fi
        count=$((count + 1))
    done
    echo $count
}

"$1" --version >/dev/null || exit 1
[[ ${SLURM_GPUS_ON_NODE:-} =~ ^[0-9]+$ ]] && command -v nvidia-smi >/dev/null || exit 0
listed=$(nvidia-smi -L) || exit 1
visible=$(count_visible "$(list_devices "$listed")")
[ "$visible" -ge "$SLURM_GPUS_ON_NODE" ] && exit 0
echo "check_node.sh: $(hostname) has $visible of $SLURM_GPUS_ON_NODE GPUs" >&2
exit 1
