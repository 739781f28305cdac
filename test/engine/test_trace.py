"""Traces of runs and of plans: they follow the JSON form of Chrome's trace events, contain every action once, have no
overlap within a row, and never use more slots than exist."""

import contextlib
import json
import os
import re
import signal
from collections import Counter, defaultdict

import pytest
from trainer_runs import command, launch, mpirun, one_thread, run, wait_until

COMPUTE, TRANSFERS = 0, 1


def schedule_of(config, *overrides):
    """Returns each stage's actions in text form: F0, E1>3, ..."""
    text = command("llama", "-c", config, "--schedule", overrides=overrides).stdout
    return [line.partition(": ")[2].split(" ") for line in text.splitlines()[1:]]


class Trace:
    """A trace's events by kind; checks the schema while reading."""

    def __init__(self, path):
        self.events = json.loads(path.read_text())
        self.spans, self.counts, self.slots, self.names = defaultdict(list), defaultdict(list), {}, {}
        for event in self.events:
            assert event["ph"] in ("X", "C", "M"), event
            assert type(event["pid"]) is int and type(event["tid"]) is int and type(event["name"]) is str, event
            assert isinstance(event["ts"], (int, float)), event
            self.take(event)

    def take(self, event):
        if event["ph"] == "X":
            assert isinstance(event["dur"], (int, float)) and event["dur"] >= 0, event
            self.spans[event["pid"], event["tid"]].append(event)
        elif event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values()) and event["args"], event
            self.counts[event["pid"], event["name"]].append((event["ts"], event["args"]["in use"]))
        elif event["name"] == "process_name":
            self.names[event["pid"]] = event["args"]["name"]
        elif event["name"] == "process_labels":
            own, lent = re.fullmatch(r"slots: (\d+) own, (\d+) lent", event["args"]["labels"]).groups()
            self.slots[event["pid"]] = {"own slots": int(own), "lent slots": int(lent)}

    @property
    def ranks(self):
        return sorted(self.slots)

    def actions(self, pid, of=None):
        rows = self.spans[pid, COMPUTE] + self.spans[pid, TRANSFERS]
        return Counter(event["name"] for event in rows if of is None or event["args"]["of"] == of)

    def steps(self):
        return [event["name"] for event in self.spans[len(self.ranks), 0]]


def ns(event, what):
    return round(event[what] * 1000)


def nothing_overlaps(trace):
    for row, events in trace.spans.items():
        events = sorted(events, key=lambda event: (event["ts"], event["dur"]))
        for before, after in zip(events, events[1:]):
            assert ns(before, "ts") + ns(before, "dur") <= ns(after, "ts"), (row, before, after)
    return True


def rows_hold_what_they_say(trace):
    for pid in trace.ranks:
        assert all(event["name"][0] in "FBIW" and event["cat"] == "compute" for event in trace.spans[pid, COMPUTE])
        assert all(event["name"][0] in "EALR" and event["cat"] == "transfer" for event in trace.spans[pid, TRANSFERS])
        for event in trace.spans[pid, COMPUTE]:
            of = [event["args"][key] for key in ("microbatch", "chunk") if key in event["args"]]
            assert event["name"][1:] == ".".join(map(str, of))
    return True


def slots_suffice_and_end_free(trace):
    """Own and lent slots in use never exceed the slots that exist, and return to 0 at the end."""
    for (pid, name), values in trace.counts.items():
        assert [at for at, _ in values] == sorted(at for at, _ in values)
        assert 0 == min(value for _, value in values) and values[-1][1] == 0
        assert max(value for _, value in values) <= trace.slots[pid][name], (pid, name, values)
    return len(trace.counts) > 0


def sound(trace):
    return nothing_overlaps(trace) and rows_hold_what_they_say(trace) and slots_suffice_and_end_free(trace)


# ---- real runs -------------------------------------------------------------------------------------------------------


LAYOUTS = {
    "bpipe": [],
    "1f1b": ["schedule.bpipe=off"],
    "to_host": ["schedule.evict_to=host"],
    "odd": ["parallel.pipeline=3"],
    "split": ["schedule.bpipe=off", "parallel.pipeline=2", "schedule.name=zb-v"],
    "tensor_and_data_adjacent": ["parallel.pipeline=2", "parallel.tensor=2", "parallel.data=2",
                                 "parallel.placement=adjacent"],
    "alone": ["parallel.pipeline=1", "schedule.bpipe=off"],
}


def traced(config, folder, *overrides):
    """Returns a run's trace, and the run."""
    ended = run(config, *overrides, arguments=["--trace", folder / "t.json"], env=one_thread())
    return Trace(folder / "t.json"), ended


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """Four stages with BPipe, three steps and two validations."""
    return traced(config, tmp_path_factory.mktemp("whole"))


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_action_of_every_rank_and_step_is_there_once(config, whole, layout, tmp_path):
    trace = traced(config, tmp_path, *LAYOUTS[layout])[0] if layout != "bpipe" else whole[0]
    stages = schedule_of(config, *LAYOUTS[layout])
    assert sound(trace)
    columns, left = divmod(len(trace.ranks), len(stages))
    assert left == 0 and len(set(trace.names.values())) == len(trace.ranks) + 1
    assert trace.steps() == ["step 1", "step 2"] + 2 * ["validation"] + ["step 3"] + 2 * ["validation"]
    for pid in trace.ranks:
        stage = pid // columns
        assert trace.names[pid].startswith(f"stage {stage} (rank ")
        for step in ("step 1", "step 2", "step 3"):
            assert trace.actions(pid, step) == Counter(stages[stage])
            ordered = sorted(trace.spans[pid, COMPUTE], key=lambda event: event["ts"])
            computed = [event["name"] for event in ordered if event["args"]["of"] == step]
            assert computed == [name for name in stages[stage] if name[0] in "FBIW"]
        forwards = Counter(action for action in stages[stage] if action[0] == "F")
        assert trace.actions(pid, "validation") == Counter({name: 4 * count for name, count in forwards.items()})


@pytest.mark.usefixtures("ranks")
def test_an_acceptor_shows_its_lent_slots_while_a_bundle_is_there(whole):
    trace, _ = whole
    lent = [pid for pid in trace.ranks if trace.slots[pid]["lent slots"] > 0]
    assert lent and all(max(value for _, value in trace.counts[pid, "lent slots"]) > 0 for pid in lent)
    for pid in lent:
        moves = trace.spans[pid, TRANSFERS]
        came, left = ({re.split("[<>]", event["name"][1:])[0] for event in moves if event["name"][0] == kind}
                      for kind in "AR")
        assert came == left and came and all(event["dur"] > 0 for event in moves)


@pytest.mark.usefixtures("ranks")
def test_a_trace_changes_no_bit(config, whole):
    assert whole[1].bits == run(config).bits


@pytest.mark.usefixtures("ranks")
def test_every_action_ends_before_those_it_feeds_begin(whole):
    """Times of several ranks are on one clock: a microbatch's forwards end in the order of the stages, its backwards
    in reverse."""
    trace, _ = whole
    events = {(pid, event["name"]): event for pid in trace.ranks for event in trace.spans[pid, COMPUTE]
              if event["args"]["of"] == "step 1"}
    begins, ends = ({key: event["ts"] + event["dur"] * late for key, event in events.items()} for late in (0, 1))
    for microbatch in range(8):
        for stage in range(3):
            assert ends[stage, f"F{microbatch}"] <= begins[stage + 1, f"F{microbatch}"]
            assert ends[stage + 1, f"B{microbatch}"] <= begins[stage, f"B{microbatch}"]


@pytest.mark.usefixtures("ranks")
def test_a_run_that_is_killed_leaves_whole_events(config, tmp_path):
    path = tmp_path / "t.json"
    job = launch(config, "train.steps=100000", "data.val_every=0", "log.metrics=", arguments=["--trace", path])
    wait_until(lambda: path.exists() and '"step 3"' in path.read_text(), "three steps were not traced")
    for pid in job.ranks():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.end(1)
    text = path.read_text()
    assert not text.endswith("]\n")
    assert len(json.loads(text + "]")) > 100


def test_a_trace_replaces_the_one_before(config, tmp_path):
    path = tmp_path / "t.json"
    path.write_text("x" * 10_000_000)
    run(config, "parallel.pipeline=1", "schedule.bpipe=off", "train.steps=1", arguments=["--trace", path])
    assert Trace(path).steps()[0] == "step 1"


# ---- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides", [[], ["schedule.bpipe=off"], ["schedule.evict_to=host"], ["parallel.tensor=2", "parallel.data=2"]]
)
def test_a_planned_step_has_every_action_and_the_plans_time(config, overrides, tmp_path):
    keys = ["hardware.pair_gb_s=1", *overrides]
    path = tmp_path / "made" / "with" / "it.json"
    ended = command("llama", "-c", config, "--plan", "--json", "--trace", path, overrides=keys)
    plan, trace, stages = json.loads(ended.stdout), Trace(path), schedule_of(config, *overrides)
    assert sound(trace) and trace.steps() == ["step"]
    assert [trace.actions(pid) for pid in trace.ranks] == [Counter(actions) for actions in stages]
    slots = [{"own slots": stage["slots"], "lent slots": stage["lent"]} for stage in plan["stages"]]
    assert [trace.slots[pid] for pid in trace.ranks] == slots
    (step,) = trace.spans[len(trace.ranks), 0]
    assert step["dur"] / 1000 == pytest.approx(plan["step_ms"], rel=1e-5)
    rows = [trace.spans[pid, COMPUTE] for pid in trace.ranks]
    busy = sum(event["dur"] for row in rows for event in row)
    makespan = max(event["ts"] + event["dur"] for row in rows for event in row)
    assert 1 - busy / makespan / len(rows) == pytest.approx(plan["bubble"], abs=1e-5)


@pytest.mark.thorough
def test_the_whole_schedule_is_drawn_where_the_plan_needs_a_part_of_it(tmp_path):
    batch = ["-o", "train.global_batch=4096", "-o", "schedule.micro_batch=1"]
    ended = command("llama", "-c", "configs/llama65b.yaml", *batch, "--plan", "--json", "--trace", tmp_path / "p.json")
    trace = Trace(tmp_path / "p.json")
    assert nothing_overlaps(trace) and len(trace.spans[0, COMPUTE]) == 2 * 4096
    makespan = max(event["ts"] + event["dur"] for pid in trace.ranks for event in trace.spans[pid, COMPUTE])
    assert makespan / 1000 <= json.loads(ended.stdout)["step_ms"] <= 1.1 * makespan / 1000


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_a_file_that_cannot_be_written_is_told_before_anything_starts(config, tmp_path):
    (tmp_path / "file").touch()
    for path, why in ((tmp_path / "file" / "t.json", "Not a directory"), (tmp_path, "Is a directory")):
        ended = run(config, arguments=["--trace", path], code=1)
        assert ended.stdout == "" and len(ended.said) == 1
        assert f"--trace: cannot write {path}: {why}; name a file" in ended.said[0]
        plan = command("llama", "-c", config, "--plan", "--trace", path, code=1)
        assert plan.stdout == "" and why in plan.stderr


def test_a_trace_does_not_replace_the_metrics(config, tmp_path):
    path = tmp_path / "same.json"
    ended = run(config, f"log.metrics={path}", arguments=["--trace", tmp_path / "." / "same.json"], code=2)
    assert ended.stdout == "" and "log.metrics is the same file" in ended.said[-1]


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("prefix", [(), mpirun(4)], ids=["self", "mpirun"])
def test_a_full_disk_at_the_start_stops_the_run_before_its_first_step(config, prefix):
    ended = run(config, prefix=prefix, arguments=["--trace", "/dev/full"], code=1)
    assert "step " not in ended.stdout
    assert "--trace: cannot write /dev/full: No space left on device; free some space there" in ended.stderr


def test_a_disk_that_fills_up_ends_the_trace_and_not_the_training(config, tmp_path):
    limited = ("bash", "-c", 'ulimit -f 24; exec "$0" "$@"')
    alone = ["parallel.pipeline=1", "schedule.bpipe=off", "train.steps=20", "data.val_every=0"]
    ended = run(config, *alone, prefix=limited, env=one_thread(),
                arguments=["--trace", tmp_path / "t.json"])
    assert len(ended.steps) == 20
    assert sum("training continues without a trace" in line for line in ended.said) == 1


def test_a_trace_of_a_schedule_has_the_times_that_were_given(config, tmp_path):
    path = tmp_path / "t.json"
    ended = command("llama", "-c", config, "--schedule", "--times", "F=2,B=3", "--trace", path)
    events = [event for event in json.loads(path.read_text()) if event["ph"] == "X" and event["name"][0] in "FB"]
    assert {(event["name"][0], round(event["dur"] / 1e6, 3)) for event in events} == {("F", 2.0), ("B", 3.0)}
    ended = command("llama", "-c", config, "--schedule", "--times", "F=1e9", "--trace", tmp_path / "long.json", code=2)
    assert "longer than a trace can show" in ended.stderr
    assert not (tmp_path / "long.json").exists()


def test_a_plan_without_times_that_can_be_drawn_writes_no_trace(config, tmp_path):
    path = tmp_path / "t.json"
    for keys, code, words in (
        (["hardware.peak_tflops=1.0e-18"], 2, "longer than a trace can show"),
        (["hardware.peak_tflops=auto"], 1, "no performance figures for this device; give hardware.peak_tflops"),
    ):
        ended = command("llama", "-c", config, "--plan", "--json", "--trace", path,
                        overrides=["hardware.device=cuda", *keys], code=code)
        assert ended.stdout == "" and not path.exists()
        assert words in ended.stderr
