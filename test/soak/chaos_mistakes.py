#!/usr/bin/env python3
"""Checks that chaos.py finds each mistake below within its first 2,000 seeds. A mistake is one replacement in a copy of
the sources.

    test/soak/chaos_mistakes.py [NAME ...] [--seconds N]

Only seeds that can reveal the mistake are tried, for N seconds per mistake (300).

No seed can find some mistakes, but other tests do: connections of another user (test_coordinator.c), another data set
after a resume (test_checkpoint_runs.py), slow plans and searches, figures that are not JSON and empty stages
(test_plan_cli.py, test_search_cli.py), and the cost of waiting next to other programs (test_waits.py, test_comm.c).
"""

import sys
from pathlib import Path
from typing import Callable, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import chaos  # noqa: E402
import virtual_mistakes  # noqa: E402

MOST = 2000


class Mistake(NamedTuple):
    name: str
    file: str
    right: str
    wrong: str
    touches: Callable[[chaos.Case], bool]


def has(*kinds):
    return lambda case: any(fault["kind"] in kinds for fault in case.faults)


def dies_in_save(case):
    call = case.call()
    return case.saves and call is not None and call["effect"] in ("kill", "abort")


def refuses_writes(case):
    call = case.call()
    return case.saves and call is not None and call["effect"].isdigit() and call["lasts"] <= 3


# fmt: off
MISTAKES = [
    Mistake("ranks_read_the_edited_configuration", "src/config/config_yaml.c",
            "if (kept) return setenv(CONFIG_COPY_VARIABLE, name, 1);", "if (kept) return 0;", has("edit")),
    Mistake("a_redirected_configuration_is_read_once", "src/config/config_yaml.c",
            "if (kept) return setenv(CONFIG_COPY_VARIABLE, name, 1);", "if (kept) return 0;",
            lambda case: case.given == "redirected" and case.ranks > 1),
    Mistake("a_tokenizer_file_elsewhere_is_taken", "src/data/dataset.c",
            "file_path_within(side->file, dirname(folder), name, &wrong) != 0)",
            'snprintf(side->file, sizeof side->file, "%.200s/%.200s", dirname(folder), name) < 0)',
            lambda case: case.tokenizer is not None),
    Mistake("a_pipe_is_taken_as_tokenizer", "src/data/dataset.c",
            "!S_ISREG(there.st_mode))", "S_ISDIR(there.st_mode))",
            lambda case: case.tokenizer == "pipe"),
    Mistake("overwrite_removes_folders_of_the_user", "src/checkpoint/checkpoint_manifest.c",
            "if (!found->complete || over", "if ((!found->complete && !config->overwrite) || over",
            lambda case: case.notes is not None and case.every > 0),
    Mistake("overwrite_replaces_a_folder_of_the_user", "src/checkpoint/checkpoint_save.c",
            "bool replaces = readable && (there.run == checkpoint->state.run || config->overwrite);",
            "bool replaces = (readable && there.run == checkpoint->state.run) || config->overwrite;",
            lambda case: case.notes is not None and case.every > 0),
    Mistake("open_slots_reach_the_ranks_as_zero", "src/run/trainer.c",
            "        layout_set(&layout, config);\n",
            "        layout_set(&layout, config);\n        if (layout.slots == 0 && layout.bpipe == BPIPE_ON)\n"
            '            return error_set(err, EXIT_USAGE, "-o schedule.slots: 0 is out of range");\n',
            lambda case: case.way == "hand" and "schedule.name=auto" in case.keys),
    Mistake("a_start_that_hangs_hears_no_signal", "src/launch/launch.c",
            "READY_WITHIN_S = 8", "READY_WITHIN_S = 800",
            lambda case: has("signal")(case) and case.call() is not None and case.call()["effect"] == "hang"),
    Mistake("lost_steps_count_from_the_first", "src/run/trainer.c",
            "newest.step + 1 : end->began)", "newest.step + 1 : 0)",
            lambda case: case.restarts > 0 and case.before > 0 and case.every > 3 and has("kill rank")(case)),
    Mistake("empty_stages_cannot_be_planned", "src/plan/plan.c",
            " && !(chunks == 1 && given > schedule->stages)", "",
            lambda case: any(key == "model.layers=2" for key in case.keys)),
    # Additional mistakes.
    Mistake("two_runs_save_in_one_folder", "src/base/files.c",
            "flock(fd, LOCK_EX | LOCK_NB) == 0", "true || flock(fd, LOCK_EX | LOCK_NB) == 0", has("second")),
    Mistake("a_write_that_fails_is_taken_as_done", "src/checkpoint/range_file.c",
            'if (put < 0 && errno != EINTR) return file_failed(file->path, "written", err);',
            "if (put < 0) return err != NULL ? bytes : -1;",
            refuses_writes),
    Mistake("a_checkpoint_has_its_name_before_its_manifest", "src/checkpoint/checkpoint_save.c",
            "manifest_write(&checkpoint->manifest, checkpoint->partial, failure) == 0 &&\n"
            "        directory_publish(checkpoint->partial, checkpoint->path, replaces, failure) == 0)",
            "directory_publish(checkpoint->partial, checkpoint->path, replaces, failure) == 0 &&\n"
            "        manifest_write(&checkpoint->manifest, checkpoint->path, failure) == 0)", dies_in_save),
    Mistake("the_death_of_a_supervisor_is_not_noticed", "src/ranks/coordinator.c",
            "if (received == RECEIVED_NOTHING || contact->rank < 0) return;",
            "if (received != RECEIVED_MESSAGE) return;",
            has("kill supervisor")),
    Mistake("a_silent_rank_is_noticed_late", "src/ranks/watchdog.c",
            "now - watched->heard > dog->patience.peer_s;", "now - watched->heard > 9 * dog->patience.peer_s;",
            lambda case: has("stop")(case) and case.ranks > 1 and case.restarts == 0 and case.way == "hand"),
    Mistake("a_request_to_stop_is_lost", "src/launch/launch.c",
            "kill(launch->mpirun, SIGUSR1), launch->forwarded = true;", "launch->forwarded = true;", has("signal")),
    Mistake("a_killed_parent_leaves_its_folder", "src/launch/launch_mpirun.c",
            "access(folder->path, F_OK) == 0) clear_(folder);", "true) pause();", has("kill parent")),
    Mistake("other_data_after_a_resume", "src/checkpoint/checkpoint_load.c",
            "point->found = true;", "point->found = true;\n            point->state.samples += 8;",
            lambda case: case.before > 0),
    Mistake("one_checkpoint_more_is_kept", "src/checkpoint/checkpoint_manifest.c",
            "own++ >= config->keep", "own++ > config->keep", lambda case: case.saves and 0 < case.every < 6),
    Mistake("a_restart_takes_the_checkpoint_before_the_newest", "src/checkpoint/checkpoint_load.c",
            "for (int64_t i = 0; i < candidates->count; i++) {",
            "for (int64_t i = candidates->count > 1; i < candidates->count; i++) {",
            lambda case: case.saves and case.restarts > 0 and 0 < case.every < 4 and has("kill rank")(case)),
]
# fmt: on


def attempts(mistake, folder):
    bench = chaos.Bench(folder)
    for seed in range(1, MOST + 1):
        if mistake.touches(chaos.Case(seed)):
            yield seed, lambda seed=seed: chaos.one(bench, seed)


if __name__ == "__main__":
    virtual_mistakes.look_for(__doc__, MISTAKES, 300, attempts)
