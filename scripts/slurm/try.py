#!/usr/bin/env python3
"""Starts a private Slurm of two nodes on this machine, to try the jobs of scripts/slurm without a cluster.

    scripts/slurm/try.py                                    a shell in which sbatch, squeue and scancel use it
    scripts/slurm/try.py scripts/slurm/train.sbatch configs/llama_tiny.yaml -o train.steps=20 -- --wait

It ends with the shell or command. The daemons need root, and slurmctld, slurmd and munged (scripts/install_deps.sh).
The tests use the same cluster (test/support/slurm_cluster.py): both nodes are this machine under two names.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "support"))

import slurm_cluster  # noqa: E402


def main(command):
    if command[:1] in (["-h"], ["--help"]):
        print(__doc__.strip())
        return 0
    if why := slurm_cluster.why_not():
        sys.stderr.write(f"try.py: {why}\n")
        return 1
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        os.chmod(folder, 0o755)
        cluster = slurm_cluster.Cluster(Path(folder))
        try:
            cluster.start()
            shell = command or [os.environ.get("SHELL", "bash")]
            print("two nodes are up; the cluster ends with this shell" if not command else "two nodes are up",
                  flush=True)
            return subprocess.run(shell, env=cluster.env).returncode
        except (AssertionError, OSError) as error:
            sys.stderr.write(f"try.py: the cluster did not start, or the command did not: {error}\n")
            return 1
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
