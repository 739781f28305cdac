"""Mistakes that the virtual GPU must find. Each is one replacement in a copy of the sources, a run that triggers it,
and a pattern that the report must match. `differs`: nothing is reported, but losses or gradients differ from a CPU's.
The run is one of a trainer with these settings, a program of operation tests, which fails, a test of dry runs, in
which the clock disagrees, or a seed of layouts.py, one of whose checks fails.

virtual_mistakes.py builds and runs them all.
"""

from typing import NamedTuple

PAIR = ("parallel.pipeline=4", "schedule.bpipe=on")
TWO = ("parallel.pipeline=2",)
WIDE = ("parallel.tensor=2",)
SEQUENCE = ("parallel.sequence=true",)
NCCL = ("parallel.collectives=nccl",)
DATA = ("parallel.data=2",)
HOST = (*PAIR, "schedule.evict_to=host")
SHARED = (*DATA, "hardware.share_gpu=true")
BF16 = ("train.precision=bf16",)
SLICES = ("schedule.name=seq1f1b", "schedule.slices=4", "model.seq_len=32")
EIGHT = (*BF16, "model.hidden=64", "model.ffn=128", "model.seq_len=32")
APART = {"VIRTUAL_NODES": "2"}
NVLS = {"NCCL_NVLS_ENABLE": "1"}

RACE = "race: .* nothing orders the two"
DEADLOCK = "deadlock: nothing has moved"
DIFFERS = "differs"
CLOCK = r"assert [\d.]+ == [\d.]+ ± "  # of a dry run
FAILS = r"\[  FAILED  \]"  # a case of an operation test
OUTSIDE = "runs over the end|never allocated|nothing has written"


class Mistake(NamedTuple):
    name: str
    file: str
    right: str
    wrong: str
    # Settings of a trainer, the name of a test program of build/virtual, a test in test_dry.py, a seed of layouts.py.
    case: tuple | str | int
    found: str
    environment: dict = {}
    family: str = "llama"


# fmt: off
MISTAKES = [
    # --- products of 8 bits
    Mistake("both_operands_are_e5m2", "src/model/quantized.c",
            "[FP8_TENSOR] = {FACTOR_E4M3, FACTOR_E5M2,", "[FP8_TENSOR] = {FACTOR_E5M2, FACTOR_E5M2,",
            (*EIGHT, "train.fp8=tensor"), "none with E5M2 times E5M2"),
    Mistake("fast_accumulation_everywhere", "src/cuda/matmul.cpp",
            "int8_t fast = p->kind_a == FACTOR_E4M3 && p->kind_b == FACTOR_E4M3;", "int8_t fast = 1;",
            (*EIGHT, "train.fp8=block"), "none with fast accumulation with scales of blocks"),
    Mistake("a_product_of_8_bits_is_not_tn", "src/cuda/matmul.cpp",
            "transpose_a && a.kind == FACTOR_PLAIN, p.transpose_b = transpose_b || a.kind != FACTOR_PLAIN;",
            "transpose_a, p.transpose_b = transpose_b;",
            (*EIGHT, "train.fp8=tensor"), "none with operands that are not TN"),
    Mistake("an_extent_of_8", "src/config/config_check.c", "== FP8_MX ? 32 : 16;", "== FP8_MX ? 32 : 8;",
            (*EIGHT, "train.fp8=tensor", "model.ffn=72"), "an access of 16 bytes at an address that is not a multiple"),
    Mistake("blocks_in_both_operands", "src/model/quantized.c",
            "[FP8_BLOCK] = {FACTOR_ROWS_128,", "[FP8_BLOCK] = {FACTOR_BLOCKS_128,",
            (*EIGHT, "train.fp8=block"), "none with blocks of 128 x 128 in both operands"),
    Mistake("operands_are_quantized_in_another_stream", "src/cuda/kernels/quantize.cu",
            "    const Quantized q = {", "    CudaBackend other = *cuda;\n"
            "    other.streams[STREAM_COMPUTE] = cuda->streams[STREAM_COMPUTE + 1];\n"
            "    Backend twin = *be;\n    twin.self = &other, be = &twin;\n"
            "    const Quantized q = {",
            (*EIGHT, "train.fp8=tensor"), RACE),
    Mistake("a_stride_of_8_bytes", "src/cuda/matmul.cpp",
            "p->m + p->k - a_rows, p->lda,", "p->m + p->k - a_rows, p->lda + (p->kind_a == FACTOR_PLAIN ? 0 : 8),",
            (*EIGHT, "train.fp8=tensor"), "none with a dimension that is no multiple of 16"),
    Mistake("gathered_scales_are_not_waited_for", "src/model/blocks.c",
            "i < (x.kind == FACTOR_PLAIN ? 1 : 2)", "i < 1",
            (*EIGHT, "train.fp8=block", *WIDE, *SEQUENCE), RACE),
    Mistake("gathered_scales_stay_where_they_arrived", "src/model/blocks.c",
            "pass->be->join_scales(pass->be,", "if (s->rows < 0) pass->be->join_scales(pass->be,",
            (*EIGHT, "train.fp8=block", *WIDE, *SEQUENCE), f"{OUTSIDE}|{DIFFERS}"),
    Mistake("scales_are_joined_in_another_stream", "src/cuda/kernels/quantize.cu",
            "    const int64_t part = rows / ranks, block", "    CudaBackend other = *cuda_self(be);\n"
            "    other.streams[STREAM_COMPUTE] = other.streams[STREAM_COMPUTE + 1];\n"
            "    Backend twin = *be;\n    twin.self = &other, be = &twin;\n"
            "    const int64_t part = rows / ranks, block",
            (*EIGHT, "train.fp8=block", *WIDE, *SEQUENCE), RACE),
    Mistake("weights_are_quantized_once_and_not_in_every_step", "src/engine/stage.c",
            "    tensors_quantize(&stage->tensors, stage->be, begin, begin + count);",
            "    if (stage->layers_queued == 0) tensors_quantize(&stage->tensors, stage->be, 0, stage->tensors.count);",
            (*EIGHT, "train.fp8=tensor"), DIFFERS),
    Mistake("scales_past_the_operand_keep_old_values", "src/cuda/kernels/narrow.cuh",
            "(rows | cols) % 128 != 0)", "(rows | cols) < 0)",
            (*EIGHT, "train.fp8=mx", "hardware.gpu=b200"), "has a scale other than 0"),
    # --- errors and start-up
    Mistake("a_query_leaves_its_error", "src/cuda/cuda.h",
            "if (status == cudaErrorNotReady) (void)cudaGetLastError();", ";", TWO, "device not ready"),
    Mistake("a_receive_waits_on_the_device_unannounced", "src/comm/comm_pushed.c",
            "        if (!parcel->started || !parcel->come) return 0;\n",
            "        bool early = way->grants && !way->direct;\n"
            "        if (!parcel->started || (!parcel->come && !early)) return 0;\n",
            TWO, "before its sender had announced", APART),
    Mistake("the_rehearsal_is_left_out", "src/run/run_create.c", "if (!be->loads_late) return 0;",
            "if (run != NULL) return 0;",
            TWO, "launched for the first time after messages", {**APART, "VIRTUAL_LAZY": "2"}),
    Mistake("a_first_message_of_unwritten_memory", "src/cuda/comm_nccl.cpp",
            "cudaMemsetAsync(scratch, 0, 1, link->stream)", "cudaSuccess", TWO, "nothing has written", APART),
    Mistake("a_receive_of_half_the_bytes", "src/cuda/comm_nccl.cpp", "ncclRecv(memory, (size_t)bytes,",
            "ncclRecv(memory, (size_t)bytes / 2,", TWO, "meets a send of", APART),
    Mistake("a_receive_that_nobody_sends", "src/cuda/comm_nccl.cpp",
            "ncclResult_t status = move_(link, sends, memory, bytes);",
            "ncclResult_t status = sends && peer > comm->rank ? ncclSuccess : move_(link, sends, memory, bytes);",
            TWO, DEADLOCK, APART),
    Mistake("links_take_as_many_blocks_as_sums", "src/cuda/comm_nccl.cpp", "LINK_CTAS}", "32}",
            (*PAIR, "parallel.tensor=2"), "what waits keeps out what it waits for", {"VIRTUAL_NODES": "4"}),
    Mistake("the_blocks_of_all_groups_are_not_added_up", "src/run/run_create.c", "run->be->blocks = (int)blocks;", "",
            (*TWO, *WIDE, *SEQUENCE, "parallel.context=2", "model.seq_len=32", "schedule.name=interleaved"),
            "what waits keeps out what it waits for", {"VIRTUAL_PEERS": "0"}),
    Mistake("mpi_starts_before_the_environment_is_set", "src/cuda/cuda_library.h",
            'setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);', "", TWO, "was not set when MPI started"),
    Mistake("the_table_of_tensors_goes_out_of_scope", "src/cuda/kernels/adamw.cu",
            "        cuda->backend.upload(&cuda->backend, (TensorEntry *)cuda->scratch + begin, piece, n *"
            " (int64_t)sizeof *piece);",
            "        cudaMemcpyAsync((TensorEntry *)cuda->scratch + begin, piece, (size_t)n * sizeof *piece,\n"
            "                        cudaMemcpyHostToDevice, cuda_compute(cuda));",
            (), "after an upload from ordinary memory that was not waited for", {"VIRTUAL_PAGEABLE": "late"}),
    Mistake("two_ranks_end_their_links_crosswise", "src/cuda/comm_nccl.cpp",
            "bool up = comm->rank < peer;", "bool up = true;",
            TWO, DEADLOCK + ".*ncclCommDestroy", {"VIRTUAL_PEERS": "0"}),
    Mistake("a_failed_group_is_aborted", "src/cuda/comm_nccl.cpp",
            "    group->failed = true;\n    return error_set(",
            "    group->failed = true;\n    ncclCommAbort(group->all.nccl);\n    return error_set(",
            WIDE, DEADLOCK + ".*ncclCommAbort", {"VIRTUAL_FAULT": "nccl@5@1"}),
    Mistake("kernels_of_nccl_come_in_clusters", "src/cuda/comm_nccl.cpp", "config.cgaClusterSize = 1;", "",
            WIDE + SEQUENCE + NCCL, "kernels come in clusters of 4 blocks"),
    Mistake("a_product_may_start_before_its_collective", "src/cuda/comm_nccl.cpp", "    start_first_(group);\n",
            "    (void)start_first_;\n",
            WIDE + SEQUENCE + NCCL, "is queued after a collective"),
    # --- messages between stages
    Mistake("a_copy_is_taken_for_done", "src/comm/comm_pushed.c",
            "if (!be->event_done(be, parcel->copied)) return 0;", ";", TWO, RACE),
    Mistake("a_message_goes_before_it_is_written", "src/engine/p2p.c",
            "p2p_event_done_(link, link->started)", "(link->sends || p2p_event_done_(link, link->started))", TWO, RACE),
    Mistake("a_buffer_is_received_into_while_it_is_read", "src/engine/p2p.c",
            "p2p_event_done_(link, link->started)", "(!link->sends || p2p_event_done_(link, link->started))",
            (*TWO, "schedule.name=gpipe"), RACE),
    # --- lending and eviction
    Mistake("lent_memory_shares_its_block", "src/cuda/backend_cuda.cpp",
            "return lent ? memory_pages(bytes, be->lent_page) : bytes;", "return lent ? bytes : bytes;",
            TWO, "whole blocks of 2 MiB"),
    Mistake("lent_memory_is_freed_while_mapped", "src/cuda/backend_cuda.cpp",
            "if (memory == cuda->lent[i]) return;", "if (memory == cuda->lent[i]) break;",
            TWO, "still has mapped"),
    Mistake("an_eviction_is_marked_on_the_wrong_stream", "src/engine/engine.c",
            "event_record(be, engine->host_copied, STREAM_EVICT)",
            "event_record(be, engine->host_copied, STREAM_COMPUTE)", HOST, RACE),
    Mistake("a_push_is_marked_on_the_wrong_stream", "src/comm/comm_pushed.c",
            "be->event_record(be, parcel->copied, self->stream);",
            "be->event_record(be, parcel->copied, STREAM_COMPUTE);", PAIR, RACE),
    Mistake("a_bundle_is_loaded_before_it_came", "src/engine/engine.c",
            "if (slot == NULL || slot->state == SLOT_FILLING) return 0;", "if (slot == NULL) return 0;",
            PAIR, "slots_move: Assertion"),
    Mistake("an_eviction_runs_over_the_end", "src/comm/comm_pushed.c",
            "                 parcel->bytes);\n", "                 parcel->bytes + 4);\n",
            PAIR, "runs over the end|race: "),
    # --- sums
    Mistake("sums_beside_compute_do_not_wait_for_it", "src/cuda/comm_nccl.cpp",
            "if (status == cudaSuccess) status = cudaStreamWaitEvent(group->all.stream, group->ordered, 0);", "",
            DATA, RACE),
    Mistake("compute_does_not_wait_for_a_gather", "src/cuda/comm_nccl.cpp",
            'cuda_note(group->cuda, cudaStreamWaitEvent(cuda_compute(group->cuda), event, 0), "ordering streams");',
            "", WIDE + SEQUENCE + NCCL, RACE),
    Mistake("sums_are_taken_for_done", "src/cuda/comm_nccl.cpp",
            "cudaError_t status = group->failed ? cudaSuccess : cuda_event_status(event);",
            "cudaError_t status = cudaSuccess;", DATA, RACE),
    Mistake("a_layer_does_not_wait_for_its_weights", "src/engine/stage.c",
            "        if (opens && !prepared) open_weights_(stage, tensors, stage->table.per_layer);\n",
            "        (void)prepared;\n", DATA, RACE),
    Mistake("ranks_call_different_collectives", "src/cuda/comm_nccl.cpp",
            "ncclAllReduce(in, out, n, types[type]",
            "ncclAllReduce(in, out, n - (size_t)group->base.rank, types[type]",
            WIDE + ("parallel.sequence=false",), "meets ncclAllReduce"),
    Mistake("memory_is_freed_while_registered", "src/engine/stage.c",
            "if (stage->registered) tensor->use_memory(tensor, NULL, NULL);", "(void)tensor;",
            WIDE, "freed while it is registered", NVLS),
    Mistake("a_rank_registers_what_another_cannot", "src/cuda/comm_nccl.cpp",
            "if ((int)able < comm->size) return 0;", "if (able < 1.0) return 0;", WIDE, "of what is registered here",
            {**NVLS, "VIRTUAL_FAULT": "memalloc@1@1"}),
    Mistake("memory_of_nccl_is_freed_as_cudas", "src/cuda/backend_cuda.cpp",
            "if (memory != cuda->registered) {", "if (cuda != NULL) {", WIDE, "which is ncclMemAlloc's", NVLS),
    # --- copies between tensor ranks
    Mistake("rows_are_pushed_into_memory_that_is_read", "src/cuda/comm_copy.cpp",
            "        status = await_flag_(self, self->stream, peer, false, self->announced);\n", "",
            WIDE + SEQUENCE, RACE),
    Mistake("compute_does_not_wait_for_the_rows_of_a_peer", "src/cuda/comm_copy.cpp",
            "if (peer != comm->rank) status = await_flag_(self, compute, peer, true, number);",
            "if (peer != comm->rank) status = cudaSuccess;", WIDE + SEQUENCE, f"{RACE}|nothing has written"),
    Mistake("a_wait_for_a_flag_does_not_flush", "src/cuda/comm_copy.cpp", "flushes ? 1u << 30 : 0", "0",
            WIDE + SEQUENCE, RACE),
    Mistake("a_flag_overtakes_its_rows", "src/cuda/comm_copy.cpp",
            "        if (status == cudaSuccess)\n            status = cudaMemcpyAsync(there,",
            "        if (status == cudaSuccess) status = raise_(self, peer, true);\n"
            "        if (status == cudaSuccess)\n            status = cudaMemcpyAsync(there,",
            WIDE + SEQUENCE, f"{RACE}|nothing has written"),
    Mistake("compute_writes_rows_that_are_being_pushed", "src/cuda/comm_copy.cpp",
            "int status = cudaStreamWaitEvent(compute, self->pushed[number % PUSHED], 0);", "int status = cudaSuccess;",
            WIDE + SEQUENCE, RACE),
    Mistake("memory_is_said_to_be_free_already", "src/model/blocks.c",
            "comm_type_(pass), c > 0);", "comm_type_(pass), true);",
            (*TWO, *WIDE, *SEQUENCE, "parallel.overlap=2"), f"{RACE}|nothing has written|announces. failed"),
    Mistake("a_peer_is_never_told_that_it_may_write", "src/cuda/comm_copy.cpp",
            "for (int i = 1; i < comm->size && status == cudaSuccess && !request->follows",
            "for (int i = 2; i < comm->size && status == cudaSuccess && !request->follows",
            WIDE + SEQUENCE, DEADLOCK),
    Mistake("compute_waits_for_rows_before_this_rank_has_queued_its_own", "src/cuda/comm_copy.cpp",
            "    if (!request->follows) self->announced = self->number;\n",
            "    if (!request->follows) self->announced = self->number;\n"
            "    for (int i = 1; i < comm->size && status == cudaSuccess; i++)\n"
            "        status = await_flag_(self, cuda_compute(self->cuda), (comm->rank + i) % comm->size, true,\n"
            "                             self->number);\n",
            # With NCCL's two streams for a communicator, the stream of copies shares the queue of compute.
            WIDE + SEQUENCE, DEADLOCK + ".*in the same hardware queue", {"CUDA_DEVICE_MAX_CONNECTIONS": "6"}),
    Mistake("rows_are_pushed_in_eight_parts", "src/cuda/comm_copy.cpp",
            "        if (status == cudaSuccess)\n            status = cudaMemcpyAsync(there, gathers",
            "        for (int k = 0; k < 7 && status == cudaSuccess; k++)\n"
            "            status = cudaMemcpyAsync(there + bytes / 8 * k,\n"
            "                                     (gathers ? blocks : blocks + peer * bytes) + bytes / 8 * k,\n"
            "                                     (size_t)bytes / 8, cudaMemcpyDeviceToDevice, self->stream);\n"
            "        if (status == cudaSuccess)\n            status = cudaMemcpyAsync(there, gathers",
            "test_the_clock_and_the_plan_count_every_copy_of_eight_tensor_ranks", CLOCK),
    # --- a host that launches too much
    Mistake("the_host_runs_as_far_ahead_as_launches_allow", "src/engine/engine.c",
            "while (engine->error.code == 0 && !be->event_done(be, event)) {",
            "while (engine->error.code != 0 && !be->event_done(be, event)) {",
            "test_a_full_stream_of_launches_does_not_delay_messages", CLOCK),
    # --- through host memory
    Mistake("a_message_leaves_before_its_copy_is_down", "src/cuda/comm_staged.cpp",
            "    if (status == cudaErrorNotReady) return 0;\n",
            "    if (status == cudaErrorNotReady) status = cudaSuccess;\n", SHARED, RACE, {"VIRTUAL_GPUS": "1"}),
    # --- products and attention
    Mistake("a_product_of_the_wrong_operand", "src/cuda/matmul.cpp",
            "first = p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N",
            "first = p->transpose_b ? CUBLAS_OP_N : CUBLAS_OP_T", (), "no kernel for a matrix product"),
    Mistake("a_kernel_is_used_for_another_alignment", "src/cuda/matmul.cpp",
            "               alignment_(p->a),\n", "               0,\n",
            WIDE + ("parallel.sequence=true",), "another shape, epilogue or alignment"),
    Mistake("a_slice_forgets_the_gradients_of_keys", "src/cuda/attention.cpp",
            "if (range) cuda_accumulate_narrow", "if (shape->first == 0) cuda_accumulate_narrow",
            (*SLICES, *BF16), DIFFERS),
    Mistake("documents_see_the_keys_of_a_slice", "src/cuda/kernels/documents.cu",
            "kind == FLASH_KEYS ? document.key", "kind == FLASH_KEYS ? document.query",
            (*SLICES, "data.mask_documents=on", "data.end_of_text=0", *BF16),
            "begins before the end of the one before"),
    # --- kernels
    Mistake("a_map_runs_over_the_end", "src/cuda/kernels/pointwise.cu", "EACH_PIECE (p, at, base, count)",
            "EACH_PIECE (p, at, base, count + 1)", BF16, OUTSIDE),
    Mistake("the_spans_of_tokens_are_not_cleared", "src/cuda/kernels/embedding.cu", "(size_t)t.count * sizeof *spans",
            "0 * sizeof *spans", (), "never allocated|nothing has written"),
    # --- inside of a kernel: barriers, shared memory, lanes, blocks
    Mistake("a_sum_does_not_wait_for_the_other_warps", "src/cuda/kernels/row.cuh",
            "if (lane == 0) workspace[n * WARP + threadIdx.x / WARP] = x[n];\n    __syncthreads();",
            "if (lane == 0) workspace[n * WARP + threadIdx.x / WARP] = x[n];", "test_gpu_norm", FAILS),
    Mistake("a_reduction_uses_its_workspace_again_too_early", "src/cuda/kernels/norm.cu",
            "float *mine = workspace + row % 2 * WORKSPACE;", "float *mine = workspace;", "test_gpu_norm", FAILS),
    Mistake("matches_are_overwritten_before_all_warps_have_read_them", "src/cuda/kernels/embedding.cu",
            "base + w * WARP, matches[w]);\n        __syncthreads();", "base + w * WARP, matches[w]);",
            "test_gpu_embedding", FAILS),
    Mistake("half_of_a_warp_waits_at_a_barrier", "src/cuda/kernels/row.cuh",
            "workspace[n * WARP + threadIdx.x / WARP] = x[n];\n    __syncthreads();",
            "workspace[n * WARP + threadIdx.x / WARP] = x[n];\n    if (lane % 2) __syncthreads();",
            "test_gpu_norm", "waits forever"),
    Mistake("a_part_of_a_warp_shuffles", "src/cuda/kernels/adamw.cu",
            "for (int lane = WARP / 2; lane > 0; lane /= 2) x += __shfl_xor",
            "for (int lane = WARP / 2; lane > 0 && threadIdx.x % WARP < 8; lane /= 2) x += __shfl_xor",
            "test_gpu_adamw", "waits forever"),
    Mistake("shared_memory_is_too_short", "src/cuda/kernels/norm.cu", "SHARED(float, parts, WARP *SEGMENTS);",
            "SHARED(float, parts, WARP *SEGMENTS - 1);", "test_gpu_norm",
            "past the end of 4092 bytes of shared memory"),
    Mistake("shared_memory_is_read_before_it_is_written", "src/cuda/kernels/rope.cu",
            "    __syncthreads();\n    int pair = threadIdx.x * W", "    int pair = threadIdx.x * W",
            "test_gpu_pointwise", FAILS),
    Mistake("wide_accesses_to_any_address", "src/cuda/kernels/pointwise.cu",
            "(((uintptr_t)out | (uintptr_t)a | (uintptr_t)b) & MASK) == 0 ? count", "MASK > 0 ? count",
            "test_kernels", "an access of 16 bytes at an address that is not a multiple"),
    Mistake("a_block_reads_the_sum_of_another", "src/cuda/kernels/adamw.cu",
            "if (threadIdx.x == 0) sums[blockIdx.x] = sum;",
            "if (threadIdx.x == 0) sums[blockIdx.x] = blockIdx.x > 0 ? sum + 0.0 * sums[blockIdx.x - 1] : sum;",
            "test_gpu_adamw", f"{FAILS}|nothing has written"),
    Mistake("a_tensor_ends_one_element_late", "src/cuda/kernels/adamw.cu",
            "if (whole + threadIdx.x < run.end)", "if (whole + threadIdx.x <= run.end)",
            "test_gpu_adamw", f"{FAILS}|cannot reach|{OUTSIDE}"),
    # --- found by a seed of layouts.py
    Mistake("gradients_of_slices_are_sharded", "src/config/config.c",
            "    if (config_slices(config) > 1)\n        return \"gradients are summed over slices",
            "    if (config_slices(config) > 64)\n        return \"gradients are summed over slices", 301, "^bits: "),
    Mistake("later_positions_get_no_gradient_on_gpus", "src/cuda/kernels/embedding.cu",
            "{positions, t.rows, t.hidden, t.batch, 0, places}",
            "{positions, t.rows, t.hidden, t.batch, 0, t.rows / t.batch}", 170, "^virtual: "),
    Mistake("odd_pieces_of_probabilities_overlap", "src/model/blocks.c",
            "piece.saved = i * attention_saved(shape, s->element);",
            "piece.saved = i * (attention_saved(shape, s->element) - s->element);", 165, "^(bits|one_rank): "),
    Mistake("data_rank_1_loses_a_piece_of_a_gradient", "src/engine/zero.c",
            "    zero->started += failed == 0;",
            "    if (zero->data->rank == 1 && u == 1) zero->stage->be->zero(zero->stage->be, unit->gradients, 4);\n"
            "    zero->started += failed == 0;", 46, "^(bits|one_rank): "),
    Mistake("a_ramp_resumed_where_the_batch_changes_is_a_sequence_late", "src/engine/batch.c",
            "    batch->first_sample = samples;",
            "    bool changes = step > 0 && config_batch_at(batch->config, step) != config_batch_at(batch->config,"
            " step + 1);\n"
            "    batch->first_sample = samples + (changes ? 1 : 0);", 3, "^resume: "),
    Mistake("bf16_resumes_from_bf16_weights", "src/checkpoint/checkpoint_load.c",
            "find_(load, tensor->spec, STATE_MASTER) : NULL;", "find_(load, tensor->spec, STATE_WEIGHT) : NULL;",
            78, "^resume: "),
    Mistake("keys_of_two_microbatches_share_memory", "src/engine/stage.c",
            "(microbatch % chunk->kept * chunk->layers + layer) * at->keys_bytes",
            "(microbatch % (chunk->kept > 2 ? chunk->kept - 1 : chunk->kept) * chunk->layers + layer) * at->keys_bytes",
            30, "^bits: "),
    Mistake("a_norm_is_not_computed_again_for_its_weights", "src/model/layer.c",
            "        block_norm(pass, t[LAYER_NORM1], layer.norm1, NULL, a->x, NULL);\n    }\n    block_weight",
            "    }\n    block_weight", 14, "^bits: "),
    Mistake("norms_of_heads_are_not_summed_over_tensor_ranks", "src/model/tensors.c",
            "return spec->head_summed || (sequence", "return (spec->head_summed && sequence) || (sequence",
            168, "^one_rank: "),
    Mistake("data_ranks_mask_like_rank_0", "src/engine/batch.c",
            "training != NULL ? position + j :", "training != NULL ? first + i * b + j :", 62, "^one_rank: "),
    Mistake("later_tensor_ranks_get_no_gradient_of_their_tokens", "src/model/blocks.c",
            "pass->positions, s->rows, s->hidden, s->batch, s->vocab_first, s->vocab_count);\n}\n\nvoid head_work",
            "pass->positions, s->rows, s->hidden, s->batch, 0, s->vocab_count);\n}\n\nvoid head_work",
            31, "^one_rank: "),
    Mistake("half_of_the_z_loss_has_a_gradient_on_gpus", "src/cuda/kernels/cross_entropy.cu",
            "*share += 2.0 * z_loss * log_z;", "*share += z_loss * log_z;", 60, "^virtual: "),
    Mistake("a_tied_head_is_counted_twice", "src/engine/optimizer.c",
            "spec->tied_to < 0 && !replica ?", "!replica ?", 2, "^bits: "),
    Mistake("a_second_part_of_the_rows_overwrites_the_first_one_s_scores", "src/model/experts.c",
            "be->rows_gather(be, work->dweights + d.begin * k, copies", "be->rows_gather(be, work->dweights, copies",
            373, "^one_rank: "),
]
