"""Shared by the tests of checkpoints: a small run, checksums and values for damaging files, and small disks."""

import json
import struct
import subprocess

import pytest
from trainer_runs import LLAMA, Trainer, checkpoint_names, saving, verify, wait_until, without_mpi

several_ranks = pytest.mark.skipif(without_mpi(), reason="built without MPI")
TINY = dict(LLAMA, hidden=8, layers=2, heads=2, kv_heads=1, ffn=8, vocab=16, seq_len=8)


def tiny(folder, steps=3, model=TINY, tokens=None):
    """Returns a trainer with checkpoints of about 30 kB."""
    return Trainer(folder, model, tokens, {"train.global_batch": 4, "train.steps": steps})


def saved_run(folder, every=1, **more):
    """Returns such a trainer after a run, with the run's checkpoints and result."""
    trainer = tiny(folder, **more)
    trainer.saved = trainer.folder / "saved"
    trainer.whole = trainer.run(saving(trainer.saved, every))
    return trainer


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Such a run, with checkpoints after steps 1, 2 and 3."""
    return saved_run(tmp_path_factory.mktemp("small"))


def whole_checkpoints(saved):
    """Returns the names of the checkpoints in a folder; requires at least one, and all must be complete."""
    names = [name for name in checkpoint_names(saved) if name.startswith("step_")]
    assert names and {name: verify(saved / name) for name in names} == dict.fromkeys(names)
    return names


# ---- files ----------------------------------------------------------------------------------------------------------


def crc64(data):
    """CRC-64/XZ, bit by bit."""
    value = (1 << 64) - 1
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0xC96C5795D7870F42 if value & 1 else 0)
    return f"{value ^ ((1 << 64) - 1):016x}"


def reseal(manifest, text):
    """Writes the text of a manifest with a matching checksum."""
    body = "".join(text.splitlines(keepends=True)[:-2])
    manifest.write_text(f'{body}  "crc64": "{crc64(body.encode())}"\n}}\n')


def poison(folder, name, element, value):
    """Sets one element of an fp32 tensor in the folder's files."""
    for path in folder.glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        (length,) = struct.unpack("<Q", data[:8])
        entry = json.loads(data[8 : 8 + length]).get(name)
        if entry is not None:
            at = 8 + length + entry["data_offsets"][0] + 4 * element
            data[at : at + 4] = struct.pack("<f", value)
            path.write_bytes(bytes(data))
            return
    raise AssertionError(name)


# ---- disks ----------------------------------------------------------------------------------------------------------


class Disk:
    """A small file system for a test."""

    def __init__(self, folder, size):
        self.folder = folder
        folder.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], capture_output=True,
                                 text=True)
        if mounted.returncode != 0:
            pytest.skip(f"needs the right to mount a small tmpfs: {mounted.stderr.strip()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.folder], check=True)

    def remount(self, option):
        """Remounts the disk. Waits while a file is open for writing, since the disk cannot become read-only before."""
        command = ["mount", "-o", f"remount,{option}", self.folder]
        wait_until(lambda: subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0,
                   f"{self.folder} stays busy")

    def fill(self):
        with open(self.folder / "ballast", "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def free(self):
        (self.folder / "ballast").unlink()
