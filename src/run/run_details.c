// The lines of --verbose at the start of a run.
#include "run.h"
#include "base/clock.h"
#include "comm/comm_pushed.h"

void details_begin(Details *details, const Log *log, const World *world) {
    details->log = world != NULL ? world_log(world, log) : log_of_all(log);
    details->began = details->since = clock_seconds();
}

void details_phase(Details *details, const char *what) {
    double now = clock_seconds();
    log_detail(&details->log, "start-up: %s, %.1f ms", what, 1e3 * (now - details->since));
    details->since = now;
}

void details_found(const Run *run) {
    const Log *log = &run->all;
    log_detail(log, "found: %s; rank 0 of %d on %s, %d of them there", world_place(run->world)->library,
               world_size(run->world), world_place(run->world)->host, world_place(run->world)->local_size);
    log_detail(log, "chosen: device %s", run->be->device);
    log_detail(log, "chosen: %s", run->be->kernels);
    log_detail(log, "chosen: messages by %s",
               world_size(run->world) == 1 ? "none, one rank"
               : !run->device.cuda         ? "MPI, between buffers in host memory"
               : run->device.shared        ? "MPI, through buffers in host memory, since ranks share a GPU"
                                           : "NCCL, between buffers on the GPUs");
}

void details_collectives(const Run *run) {
    if (run->tensor == NULL || run->tensor->use_memory == NULL) return;
    if (run->stage.at.shape.copies) {
        log_detail(&run->all, "chosen: gathers and sums over tensor ranks by %s",
                   run->stage.registered ? "copies into the memory of the other ranks" : "NCCL");
        return;
    }
    log_detail(&run->all, "chosen: collectives over tensor ranks work in memory that is %sregistered with NCCL",
               run->stage.registered ? "" : "not ");
}

void details_bundles(const Run *run) {
    const StageSchedule *list = &run->schedule->stage[run->at.stage];
    bool host = false, peer = false;
    int direct = 0, far = 0;
    for (int64_t i = 0; i < list->count; i++) {
        if (list->actions[i].kind != ACTION_EVICT) continue;
        *(list->actions[i].peer == SCHEDULE_HOST ? &host : &peer) = true;
    }
    if (run->at.tensor > 0 || run->at.replica > 0 || (!host && !peer)) return;
    if (run->pair != NULL) comm_pushed_ways(run->pair, &direct, &far);
    log_detail(run->log, "chosen: evicted bundles go %s",
               host         ? "to host memory, copied by this stage"
               : direct > 0 ? "into the partner's memory, copied by this stage alone"
                            : "to the partner as messages, which it has to take");
}
