#!/usr/bin/env python3
"""Checks that layouts.py finds each mistake below within its first 500 seeds. A mistake is one replacement in a copy of
the sources.

    test/soak/layouts_mistakes.py [NAME ...] [--seconds N]

The seed that found a mistake before is tried first. Only the checks and seeds that can reveal the mistake are run, for
N seconds per mistake (1800).
"""

import sys
from pathlib import Path
from typing import Callable, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import layouts  # noqa: E402
import virtual_mistakes  # noqa: E402
from layouts_case import Case, number  # noqa: E402

MOST = 500


class Mistake(NamedTuple):
    seed: int  # which found it when it was last tried
    name: str
    file: str
    right: str
    wrong: str
    checks: tuple
    touches: Callable[[dict], bool]


def several(*names):
    """Returns whether one of these keys is above 1."""
    return lambda keys: any(number(keys, name) > 1 for name in names)


def given(*names):
    return lambda keys: all(name in keys for name in names)


def odd_pieces(keys):
    pieces = 2 * number(keys, "parallel.context")
    return pieces > 2 and "none" in keys.get("attention.mode", "") and number(keys, "model.seq_len") // pieces % 2 == 1


def turned_positions(keys):
    sliced = number(keys, "schedule.slices") > 1 and "data.reset_positions" in keys
    return keys["model.family"] == "gpt" and (sliced or number(keys, "parallel.context") > 1)


def tied_apart(keys):
    tied = keys.get("model.tie_embeddings", "true" if keys["model.family"] == "gpt" else "false") == "true"
    return tied and number(keys, "parallel.pipeline") > 1


# fmt: off
MISTAKES = [
    Mistake(301, "gradients_of_slices_are_sharded", "src/config/config.c",
            "    if (config_slices(config) > 1)\n        return \"gradients are summed over slices",
            "    if (config_slices(config) > 64)\n        return \"gradients are summed over slices",
            ("bits",), lambda keys: given("parallel.shard_gradients")(keys) and several("schedule.slices")(keys)),
    Mistake(170, "later_positions_get_no_gradient_on_gpus", "src/cuda/kernels/embedding.cu",
            "{positions, t.rows, t.hidden, t.batch, 0, places}",
            "{positions, t.rows, t.hidden, t.batch, 0, t.rows / t.batch}", ("virtual",), turned_positions),
    Mistake(165, "odd_pieces_of_probabilities_overlap", "src/model/blocks.c",
            "piece.saved = i * attention_saved(shape, s->element);",
            "piece.saved = i * (attention_saved(shape, s->element) - s->element);", ("bits", "one_rank"), odd_pieces),
    Mistake(46, "data_rank_1_loses_a_piece_of_a_gradient", "src/engine/zero.c",
            "    zero->started += failed == 0;",
            "    if (zero->data->rank == 1 && u == 1) zero->stage->be->zero(zero->stage->be, unit->gradients, 4);\n"
            "    zero->started += failed == 0;", ("one_rank",), several("parallel.data", "parallel.context")),
    Mistake(3, "a_ramp_resumed_where_the_batch_changes_is_a_sequence_late", "src/engine/batch.c",
            "    batch->first_sample = samples;",
            "    bool changes = step > 0 && config_batch_at(batch->config, step) != config_batch_at(batch->config,"
            " step + 1);\n"
            "    batch->first_sample = samples + (changes ? 1 : 0);", ("resume",), given("train.batch_ramp")),
    Mistake(78, "bf16_resumes_from_bf16_weights", "src/checkpoint/checkpoint_load.c",
            "find_(load, tensor->spec, STATE_MASTER) : NULL;",
            "find_(load, tensor->spec, STATE_WEIGHT) : NULL;", ("resume",), given("train.precision")),
    Mistake(30, "keys_of_two_microbatches_share_memory", "src/engine/stage.c",
            "(microbatch % chunk->kept * chunk->layers + layer) * at->keys_bytes",
            "(microbatch % (chunk->kept > 2 ? chunk->kept - 1 : chunk->kept) * chunk->layers + layer) * at->keys_bytes",
            ("bits",), several("schedule.slices")),
    Mistake(14, "a_norm_is_not_computed_again_for_its_weights", "src/model/layer.c",
            "        block_norm(pass, t[LAYER_NORM1], layer.norm1, NULL, a->x, NULL);\n    }\n    block_weight",
            "    }\n    block_weight", ("bits",), given("schedule.recompute")),
    Mistake(168, "norms_of_heads_are_not_summed_over_tensor_ranks", "src/model/tensors.c",
            "return spec->head_summed || (sequence", "return (spec->head_summed && sequence) || (sequence",
            ("one_rank",), lambda keys: "model.qk_norm" in keys and several("parallel.tensor")(keys)),
    Mistake(62, "data_ranks_mask_like_rank_0", "src/engine/batch.c",
            "training != NULL ? position + j :", "training != NULL ? first + i * b + j :",
            ("one_rank",), lambda keys: "train.objective" in keys and several("parallel.data")(keys)),
    Mistake(60, "half_of_the_z_loss_has_a_gradient_on_gpus", "src/cuda/kernels/cross_entropy.cu",
            "*share += 2.0 * z_loss * log_z;", "*share += z_loss * log_z;", ("virtual",), given("train.z_loss")),
    Mistake(2, "a_tied_head_is_counted_twice", "src/engine/optimizer.c",
            "spec->tied_to < 0 && !replica ?", "!replica ?",
            ("bits",), tied_apart),
    Mistake(373, "a_second_part_of_the_rows_overwrites_the_first_one_s_scores", "src/model/experts.c",
            "be->rows_gather(be, work->dweights + d.begin * k, copies", "be->rows_gather(be, work->dweights, copies",
            ("one_rank",), several("parallel.expert")),
]
# fmt: on


def attempts(mistake, folder):
    bench = layouts.Bench(folder)
    for seed in (mistake.seed, *range(1, MOST + 1)):
        case = Case(seed, bench.legal, layouts.CHECKS)
        case.refused, case.checks = [], [name for name in case.checks if name in mistake.checks]
        if case.checks and mistake.touches(case.keys):
            yield seed, lambda case=case: (layouts.one_case(bench, case) or (None, None))[1]
        bench.clear()


if __name__ == "__main__":
    virtual_mistakes.look_for(__doc__, MISTAKES, 1800, attempts)
