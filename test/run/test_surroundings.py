"""The environment of a run: closed descriptors, a terminal that disappears, a second run in the same folder."""

import fcntl
import os
import re
import shutil
import signal
import struct
import termios
import time
from pathlib import Path

import pytest

from harm import launcher_process, small_config
from trainer_runs import (as_options, environment, execute, launch, metrics_of, mpirun, nothing_left, processes_with,
                          run, socket_inodes, started, trainer, wait_until, without_mpi, write_config)

SOON = 60
ALONE = ("parallel.pipeline=1", "schedule.bpipe=off")
RANKS = {"one_rank": ALONE, "four_ranks": ("parallel.pipeline=4",)}
ENDLESS = ("train.steps=1000000", "train.schedule=constant")
several_ranks = pytest.mark.skipif(without_mpi(), reason="built without MPI")
each_size = pytest.mark.parametrize("overrides", [
    pytest.param(RANKS["one_rank"], id="one_rank"),
    pytest.param(RANKS["four_ranks"], id="four_ranks", marks=several_ranks),
])


@pytest.fixture
def small(tmp_path):
    return small_config(tmp_path)


def through_bash(script):
    """Returns a command prefix that starts the trainer from a shell; in `script`, "$@" is the trainer's command."""
    return ["bash", "-c", script, "-"]


# --- standard input, output and error that are closed or cannot be written


@each_size
@pytest.mark.parametrize("output, why", [
    (">&-", "Bad file descriptor"), ("<&- >&-", "Bad file descriptor"),
    ("> /dev/full", "No space left on device"), ("> >(read line)", "Broken pipe"),
])
def test_output_that_cannot_be_written_costs_no_work_and_goes_into_no_other_file(
    small, tmp_path, overrides, output, why):
    saved, metrics = tmp_path / "saved", tmp_path / "metrics.jsonl"
    ended = run(small, *ENDLESS, f"log.metrics={metrics}", f"checkpoint.dir={saved}", "checkpoint.every=0", *overrides,
                prefix=through_bash(f'exec "$@" {output}'), code=1)
    assert ended.said[-1].endswith(f"cannot write to standard output: {why}"), ended.stderr
    assert all(line.startswith("{") for line in metrics.read_text().splitlines())
    assert [path.name for path in saved.iterdir()] == [f"step_{len(metrics_of(metrics)):08}"] and nothing_left(small)


@each_size
def test_a_closed_standard_error_changes_nothing_else(small, tmp_path, overrides):
    saved = f"checkpoint.dir={tmp_path}/saved"
    ended = run(small, "train.steps=5", saved, "checkpoint.every=2", *overrides, prefix=through_bash('exec "$@" 2>&-'))
    assert ended.stderr == "" and ended.stdout.count("step ") == 5
    again = run(small, "train.steps=5", saved, *overrides, resume=tmp_path / "saved")
    assert "step_00000005 after step 5" in again.stderr, again.stderr


# --- signals


LONG_TEXTS = ("model.layers=1", "sample.every=3", "sample.count=1", "sample.tokens=1800", "sample.prompt=" + 250 * "1 ")


@pytest.mark.thorough
@pytest.mark.parametrize("keys, blocking", [((), True), (LONG_TEXTS, False)], ids=["lines", "texts_nonblocking"])
def test_a_reader_that_pauses_ends_no_run_and_holds_up_no_request_to_stop(small, tmp_path, keys, blocking):
    """A nonblocking pipe, as node.js makes them, takes a part of a text that is longer than it has room for."""
    saved = tmp_path / "saved"
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, 8192)
    os.set_blocking(theirs, blocking)
    job = started(small, tmp_path, "train.timeout_s=2", f"checkpoint.dir={saved}", *keys, *ALONE, stdout=theirs)
    os.close(theirs)
    waiting = lambda: struct.unpack("i", fcntl.ioctl(ours, termios.FIONREAD, b"    "))[0]
    wait_until(lambda: job.poll() is not None or waiting() > 4000, "the pipe does not fill", SOON)
    time.sleep(4)
    assert job.poll() is None, job.end(None).stderr
    job.stop(code=3)
    os.close(ours)
    assert [path.name[:5] for path in saved.iterdir()] == ["step_"]


@pytest.mark.thorough
def test_a_stop_in_the_middle_of_matrix_products_disturbs_nothing(tmp_path):
    """Steps of many products: the signal comes inside one. Kernels of some libraries leave a handler no stack space."""
    model = "{family: llama, hidden: 256, layers: 4, heads: 8, kv_heads: 4, ffn: 512, vocab: 100, seq_len: 64}"
    config = write_config(tmp_path, model=model)
    for i in range(4):
        job = started(config, tmp_path, *ALONE, f"checkpoint.dir={tmp_path}/{i}")
        time.sleep(0.07 * i)
        job.stop(code=3)


@each_size
def test_a_run_under_nohup_ignores_hang_ups(small, tmp_path, overrides):
    job = started(small, tmp_path, *overrides, prefix=["nohup"])
    job.send_signal(signal.SIGHUP)
    job.trains(len(metrics_of(job.metrics)) + 20)
    job.stop(code=1)  # asked to stop, without a folder to save to


@each_size
def test_one_request_may_come_as_two_signals(small, tmp_path, overrides):
    """timeout(1) sends one to the process and one to its group."""
    for i in range(3):
        job = started(small, tmp_path, f"checkpoint.dir={tmp_path}/saved{i}", *overrides)
        job.send_signal(signal.SIGTERM)
        job.stop(signal.SIGINT, code=3)


@pytest.mark.parametrize("ranks, overrides", [(0, RANKS["one_rank"]),
                                              pytest.param(0, RANKS["four_ranks"], marks=several_ranks),
                                              pytest.param(4, RANKS["four_ranks"], marks=several_ranks)])
def test_signals_that_the_caller_blocks_or_ignores_are_heard(small, tmp_path, ranks, overrides):
    """ranks: under a bare mpirun, through which each rank starts in the same way, and hears SIGUSR1."""
    heedless = ["python3", "-c", "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN);"
                "signal.signal(signal.SIGUSR1, signal.SIG_IGN);"
                "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); os.execv(sys.argv[1], sys.argv[1:])"]
    job = started(small, tmp_path, *overrides, f"checkpoint.dir={tmp_path}/saved",
                  prefix=[*(mpirun(ranks) if ranks else ()), *heedless])
    ended = job.stop(signal.SIGUSR1, code=3)
    last = int(re.search(r"stopped on request after step (\d+); continue with --resume", ended.stderr)[1])
    assert nothing_left(small), ended.stderr
    assert [path.name for path in (tmp_path / "saved").iterdir()] == [f"step_{last:08}"]


# --- hosts that see different files


EXPERTS = ("model.experts=4", "model.experts_per_token=2")


@several_ranks
@pytest.mark.parametrize("key, first, other, said, more", [
    ("train.beta2", "0.9", "0.91", "0.91, but rank 0 has train.beta2 0.9", ()),
    ("checkpoint.dir", "saved", "", "empty, but rank 0 has checkpoint.dir set", ()),
    ("log.experts", "true", "false", "false, but rank 0 has log.experts true", EXPERTS)])
def test_ranks_with_different_configurations_are_refused(small, key, first, other, said, more):
    each = ["sh", "-c", f'[ $OMPI_COMM_WORLD_RANK = 1 ] || exec "$@" -o {key}={first}; exec "$@" -o {key}={other}', "-"]
    ended = run(small, "parallel.pipeline=2", "train.steps=3", *more, prefix=[*mpirun(2), *each], code=2)
    assert f"has {key} {said}; " in ended.stderr, ended.stderr


def apart(folder):
    """Returns a command prefix for two ranks with a working directory each, as if they were on two hosts."""
    for rank in ("0", "1"):
        (folder / rank).mkdir()
    return [*mpirun(2), "sh", "-c", f'cd {folder}/$OMPI_COMM_WORLD_RANK && exec "$@"', "-"]


@several_ranks
def test_ranks_that_see_different_files_are_refused(small, tmp_path):
    """As if a file were new, and not yet visible on the second host."""
    prefix = apart(tmp_path)
    for rank in ("0", "1"):
        for file in tmp_path.glob("train_*.bin"):
            shutil.copy(file, tmp_path / rank)
    shutil.copy(next(tmp_path.glob("val_*.bin")), tmp_path / "0" / "train_9.bin")
    layout = ("parallel.pipeline=2", "schedule.bpipe=off", "data.train=train_*.bin")
    ended = run(small, *layout, "train.steps=3", prefix=prefix, code=2)
    assert "data.train: rank 1 sees other files than rank 0" in ended.stderr, ended.stderr


@several_ranks
def test_ranks_that_see_checkpoints_of_different_runs_are_refused(small, tmp_path):
    prefix = apart(tmp_path)
    for rank in ("0", "1"):
        saved = ("train.steps=2", "checkpoint.every=2", f"checkpoint.dir={tmp_path}/{rank}/saved")
        run(small, *ALONE, *saved)
    ended = run(small, "parallel.pipeline=2", "train.steps=3", prefix=prefix, resume="saved", code=1)
    assert "rank 1 reads another run's checkpoint there than rank 0; " in ended.stderr, ended.stderr


@several_ranks
def test_ranks_that_start_from_different_weights_are_refused(small, tmp_path):
    """As if the hosts' copies of a model were of different days: all names, shapes and sizes are equal."""
    prefix = apart(tmp_path)
    for rank in ("0", "1"):
        saved = ("train.steps=1", "checkpoint.every=1", f"checkpoint.dir={tmp_path}/{rank}/saved")
        run(small, *ALONE, f"train.lr=1e-{rank}", *saved)
    keys = ("parallel.pipeline=2", "train.steps=1", "checkpoint.init_from=saved/step_00000001")
    ended = run(small, *keys, prefix=prefix, code=2)
    assert "rank 1 sees another model there than rank 0; " in ended.stderr, ended.stderr
    shutil.rmtree(tmp_path / "1" / "saved")
    shutil.copytree(tmp_path / "0" / "saved", tmp_path / "1" / "saved")
    run(small, *keys, prefix=prefix)


# --- two runs at once


@pytest.mark.thorough
@each_size
def test_of_two_runs_with_one_place_for_checkpoints_the_second_is_refused(small, tmp_path, overrides):
    """Each run would remove the other's unfinished checkpoints."""
    saved = f"checkpoint.dir={tmp_path}/saved"
    job = started(small, tmp_path, saved, "checkpoint.every=5", *overrides)
    force = "checkpoint.overwrite=true"  # the first run may have saved by now, which would itself be a reason to refuse
    second = run(small, "train.steps=5", saved, force, "checkpoint.every=0", *overrides, code=1)
    assert second.stdout == ""
    assert second.said[-1].endswith(
        f"checkpoint.dir: {tmp_path}/saved: another run is saving its checkpoints there; wait until it ends, or name"
        " another folder")
    ended = job.stop(code=3)
    assert "could not be written" not in ended.stderr, ended.stderr
    run(small, "train.steps=5", saved, force, *overrides)  # the lock is free again


def test_of_two_runs_with_one_file_for_metrics_the_second_is_refused(small, tmp_path):
    """Their lines would interleave, and each start would cut the file. A link is no other file."""
    metrics = tmp_path / "metrics.jsonl"
    job = started(small, tmp_path)
    (tmp_path / "link.jsonl").symlink_to(metrics)
    second = run(small, "train.steps=5", f"log.metrics={tmp_path}/link.jsonl", code=1)
    assert second.said[-1].endswith(
        f"log.metrics: another run writes its lines to {tmp_path}/link.jsonl; wait until it ends, or name another file")
    job.stop()
    assert not (tmp_path / ".metrics.jsonl.lock").exists()
    assert len([line for line in metrics.read_text().splitlines() if '"type":"run"' in line]) == 1
    run(small, "train.steps=5", f"log.metrics={metrics}")


# --- limits


@each_size
def test_a_limit_on_file_sizes_at_the_start_is_a_sentence(small, tmp_path, overrides):
    job = launch(small, "train.steps=5", f"log.metrics={tmp_path}/m.jsonl", *overrides,
              prefix=through_bash('ulimit -f 0; exec "$@"'))
    ended = job.end(code=1)
    assert "cannot write" in ended.said[-1], ended.stderr
    assert nothing_left(small)


@several_ranks
def test_too_few_files_for_mpirun_are_a_sentence_and_a_low_soft_limit_is_raised(small, tmp_path):
    four = ("train.steps=2", *RANKS["four_ranks"])
    ended = run(small, *four, prefix=through_bash('ulimit -n 32; exec "$@"'), code=1)
    assert ended.said[-1].endswith(
        "mpirun opens up to 52 files for 4 ranks and is limited to 32; raise ulimit -n")
    run(small, *four, prefix=through_bash('ulimit -Sn 32; exec "$@"'))


@each_size
def test_ranks_may_open_as_many_files_as_the_hard_limit_allows(small, tmp_path, overrides):
    """Over TCP a rank has a connection, which is an open file, to every peer."""
    job = started(small, tmp_path, *overrides, prefix=through_bash('ulimit -Sn 128; ulimit -Hn 512; exec "$@"'))
    limits = [re.search(r"^Max open files +(\d+)", Path(f"/proc/{pid}/limits").read_text(), re.M)[1]
              for pid in job.ranks() or [job.pid]]
    job.stop()
    assert limits == ["512"] * (4 if overrides == RANKS["four_ranks"] else 1)
    for i in range(600):
        os.link(tmp_path / "train_000.bin", tmp_path / f"train_1{i:03}.bin")
    ended = run(small, *overrides, prefix=through_bash('ulimit -n 512; exec "$@"'), code=2)
    assert ended.said[-1].endswith("cannot be read: Too many open files; raise ulimit -n")


# --- configurations from a pipe


@each_size
@pytest.mark.parametrize("way",
                         ['"$@" -c <(cat "$CONFIGURATION")', '"$@" -c /dev/stdin < <(cat "$CONFIGURATION")',
                          '"$@" --config=<(cat "$CONFIGURATION")', '"$@" -c /dev/stdin < "$CONFIGURATION"'])
def test_a_configuration_through_a_pipe_reaches_all_ranks(small, tmp_path, overrides, way):
    options = as_options("train.steps=2", f"log.metrics={tmp_path}/m.jsonl", *overrides)
    ended = execute(["bash", "-c", way, "-", trainer("llama"), *options], env=environment(CONFIGURATION=str(small)))
    assert ended.stdout.count("step ") == 2, ended.stderr


# --- folders that ranks need


@several_ranks
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None,
                    reason="mounts a small /dev/shm: root, unshare")
@pytest.mark.parametrize("size", ["64k", "6m"])
def test_a_small_dev_shm_is_no_harm_where_the_temporary_folder_has_space_and_else_a_sentence(small, tmp_path, size):
    mounts = f'mount -t tmpfs -o size={size} none /dev/shm; mount -t tmpfs -o size={size} none "$TMPDIR"; exec "$@"'
    (tmp_path / "tmp").mkdir()
    prefix = ["unshare", "--mount", *through_bash(mounts)]
    ended = run(small, "train.steps=2", *RANKS["four_ranks"], prefix=prefix,
                env=environment(TMPDIR=f"{tmp_path}/tmp"), code=1)
    assert "has 20 MiB free for the messages of 4 ranks" in ended.said[-1], ended.stderr
    prefix = ["unshare", "--mount", *through_bash(mounts.split(";")[0] + '; exec "$@"')]
    run(small, "train.steps=2", *RANKS["four_ranks"], prefix=prefix,
                env=environment(TMPDIR=f"{tmp_path}/tmp"))


@several_ranks
@pytest.mark.parametrize("limit", ["-v 300000", "-v 60000", "-d 20000", "-n 4", "-n 16", "-s 64", "-s 128"])
def test_a_limit_that_is_too_low_is_a_sentence_that_names_it(small, limit):
    limited = through_bash(f'ulimit {limit}; exec "$@"')
    ended = run(small, "train.steps=2", *RANKS["four_ranks"], prefix=limited, code=None)
    assert ended.code == 0 or "ulimit" in ended.said[-1], (ended.code, ended.stderr)  # it suffices, or it is named
    assert nothing_left(small)


@several_ranks
def test_a_deleted_working_directory_is_a_sentence(small, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f'cd {gone}; rmdir {gone}; exec "$@"'
    ended = run(small, "train.steps=2", *RANKS["four_ranks"], prefix=through_bash(script), code=1)
    assert "the working directory cannot be entered" in ended.said[-1], ended.stderr


@several_ranks
def test_no_port_of_a_rank_on_one_machine_is_reached_from_another(small, tmp_path):
    """Exception: mpirun listens for daemons of other hosts on all interfaces, with any options."""
    job = started(small, tmp_path, *RANKS["four_ranks"])
    inodes = socket_inodes(set(processes_with(str(small))) - {launcher_process(job)})
    open_ports = []
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
            words = line.split()
            listens = words[3] == "0A" if kind.startswith("tcp") else True
            if words[9] in inodes and listens:
                open_ports.append((kind, words[1].split(":")[0]))
    job.stop()
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    assert inodes and [port for port in open_ports if port[1] not in loopback] == []
