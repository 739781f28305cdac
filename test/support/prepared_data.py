"""Runs scripts/prepare_data.py and reads its output."""

import array

from trainer_runs import ROOT, script

SCRIPT = ROOT / "scripts" / "prepare_data.py"


def prepare(*arguments, **options):
    return script("prepare_data.py", *map(str, arguments), **options)


def tokens(folder, pattern):
    """Checks each shard's header; returns all tokens of the shards in name order."""
    everything = []
    for path in sorted(folder.glob(pattern)):
        data = path.read_bytes()
        header, body = array.array("i", data[:1024]), array.array("H", data[1024:])
        assert header[:3].tolist() == [20240520, 1, len(body)]
        assert not any(header[3:])
        everything += body
    return everything


def document(data):
    return [256, *data]


def refused(tmp_path, words, *arguments, **options):
    """Checks that the script ends with one sentence that contains `words`, and leaves no file."""
    result = prepare(*arguments, "-o", tmp_path / "out", **options)
    assert result.returncode == 1
    assert words in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert not list((tmp_path / "out").glob("*")) + list((tmp_path / "out").glob(".*"))
