"""Finds the GPUs of a job and of a node, from the options of torchrun and srun and the lines of a Slurm script."""

import re
import shlex

from run_files import Failure

from .shell import readable, unknown_in

SHORT = {"-N": "nodes", "-n": "ntasks", "-G": "gpus", "-np": "ntasks", "-c": "cpus-per-task", "-ppn": "ntasks-per-node"}
WORLD = ("nnodes", "nproc-per-node", "nodes", "ntasks", "ntasks-per-node", "gpus-per-node", "gpus", "gres", "num-gpus",
         "num-nodes", "npernode", "gpus-per-task", "num-processes", "num-machines")


def front_options(words):
    """Returns {option: value} of a launcher's command line."""
    found = {}
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        after = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else ""
        if name.startswith("--"):
            found[name[2:].replace("_", "-")] = value if equals else after
        elif name in SHORT:
            found[SHORT[name]] = after
        elif re.fullmatch(r"-[NnG]\d+", word):
            found[SHORT[word[:2]]] = word[2:]
    return found


def slurm_lines(text):
    """Returns {option: value} of the #SBATCH lines."""
    found = {}
    for line in re.findall(r"^#SBATCH\s+(.*)$", text, re.MULTILINE):
        try:
            found |= front_options(shlex.split(line, comments=True))
        except ValueError:
            found |= front_options(line.split())
    return found


def count(name, value):
    """Returns the number in a launcher's option, or None if it is unknown before the job runs."""
    if value is None:
        return None
    text = readable(value).replace("_", "") if not unknown_in(value) else ""
    if re.fullmatch(r"\d+", text):
        if not 0 < int(text) <= 1 << 20:
            raise Failure(f"--{name}: {text} is out of range; use 1 or more")
        return int(text)
    if name in ("nnodes", "nodes") and (found := re.fullmatch(r"(\d+)[:-](\d+)", text)) and found[1] == found[2]:
        return count(name, found[1])
    return None


def gpus_of(s, front, slurm, gpus):
    """Returns (GPUs of the job, GPUs of a node or None). Refuses a job of unknown size."""
    options = front_options(front)
    for name in WORLD:  # options of a launcher among the trainer's flags
        if name in s and name not in options:
            options[name] = str(s.take(name))
    unread = [f"--{name} {readable(value)}" for name, value in options.items() if name not in WORLD and value]
    s.quiet_ones += unread
    known = {name: count(name, options.get(name, slurm.get(name))) for name in WORLD}
    for source in (options, slurm):
        found = re.search(r"(?:gpu:)?(?:[\w-]+:)?(\d+)(?:\(|,|$)", source.get("gpus-per-node", source.get("gres", "")))
        if known["gpus-per-node"] is None and found:
            known["gpus-per-node"] = count("gpus-per-node", found[1])
    torchrun = (any(re.search(r"torchrun|torch\.distributed|deepspeed", word) for word in front)
                or "nproc-per-node" in options)
    nodes = first(known, "nnodes", "num-nodes", "nodes", "num-machines")
    each = first(known, "nproc-per-node", "num-gpus") if torchrun else first(known, "ntasks-per-node", "npernode")
    tasks = known["num-processes"] or (known["ntasks"] if not torchrun else None)
    if torchrun and not {"nproc-per-node", "num-gpus"} & set(options) and "nnodes" in options:
        each = 1  # torchrun's own default
    each = each or known["gpus-per-node"]
    if torchrun and each and nodes is None and not {"nnodes", "num-nodes"} & set(options):
        nodes = 1
    world = tasks or (nodes * each if nodes and each else known["gpus"])
    if gpus is not None:
        if world not in (None, gpus):
            s.say("world", f"--gpus {gpus} is planned; the script has {world}")
        elif world is None and (nodes or each):
            s.say("world", f"--gpus {gpus} is planned; the script has {nodes or 'an unknown number of'} nodes of"
                           f" {each or 'an unknown number of'} GPUs")
        world = gpus
    if world is None:
        names = ("nnodes", "nproc-per-node", "nodes", "ntasks-per-node")
        unsaid = [f"--{name} {readable(options[name])}" for name in names if name in options and known[name] is None]
        raise Failure(f"the number of GPUs is not known{' (' + ', '.join(unsaid) + ')' if unsaid else ''}; give"
                      f" --gpus N before the program's name{s.because()}")
    if each is None and tasks and nodes:
        each = tasks // nodes
    return world, min(each, world) if each else None


def first(known, *names):
    return next((known[name] for name in names if known[name] is not None), None)
