// Memory operations of streams: a stream writes a word of its device's memory, or waits for a word that another stream
// writes. This orders only these two streams.
//
// Rules, with the documents they come from:
// - A wait ends when (int32_t)(word - value) >= 0, "a cyclic comparison which ignores wraparound" (cuda.h,
//   CU_STREAM_WAIT_VALUE_GEQ). Words are aligned to 4 bytes.
// - "Normally, cuStreamWriteValue32 will provide a memory fence before the write" (cuda.h, CUstreamWriteValue_flags),
//   and a copy begins when earlier work of its stream has ended. So a wait for the word also waits for the work
//   before the write. A write without the fence is "not supported in the v2 API".
// - "The device is permitted to reorder remote writes internally" (cuda.h, CU_STREAM_WAIT_VALUE_FLUSH). So a wait
//   without this flag orders nothing after the other stream's work.
// - NCCL writes words of other GPUs by copies of 4 bytes, and waits on words of its own memory (ce_coll.cc). Here, too,
//   both operations take only this process's device memory, and 4-byte copies into mapped memory are flags.
#include "virtual.h"

#include <cstring>
#include <set>

namespace virtual_gpu {

namespace {

enum { NO_MEMORY_BARRIER = 1, WAIT_FLUSH = 1 << 30 };

// Returns the flag at this word; the first call creates it. Call with the job's lock held.
Flag *flag_at(const void *word) {
    int owner;
    uint64_t offset = arena_offset(word, &owner);
    for (Flag &flag : job()->flags) {
        if (flag.owner == 1 + owner && flag.offset == offset) return &flag;
        if (flag.owner != 0) continue;
        flag.owner = 1 + owner, flag.offset = offset;
        return &flag;
    }
    defect("more than %d flags", FLAGS);
}

void raise(const Access &access, void *word, uint32_t value) {
    JobLock lock;
    Flag *flag = flag_at(word);
    flag->clock.copy(*access.clock);
    __atomic_store_n((uint32_t *)word, value, __ATOMIC_SEQ_CST);
    ring();
}

bool raised(cudaStream_t stream, const void *word, uint32_t value, bool flushes) {
    SharedClock clock;
    {
        JobLock lock;
        if ((int32_t)(__atomic_load_n((const uint32_t *)word, __ATOMIC_SEQ_CST) - value) < 0) return false;
        clock = flag_at(word)->clock;
    }
    if (!flushes) return true;
    auto lock = device_lock();
    stream_clock(stream).join(clock.at, clock.width);
    return true;
}

int index_of(const void *word) {
    JobLock lock;
    return (int)(flag_at(word) - job()->flags);
}

Op flag_op(const char *what, StepKind kind, const void *word, uint32_t value, double seconds = 0) {
    Op op;
    op.what = what;
    op.blocks = 0;
    op.dry.kind = kind, op.dry.seconds = seconds, op.dry.value = value;
    if (dry()) op.dry.flag = index_of(word);
    return op;
}

std::set<cudaStream_t> &raising() {
    static std::set<cudaStream_t> streams;
    return streams;
}

void *word_of(unsigned long long address, const char *call) {
    void *word = (void *)(uintptr_t)address;
    Region region = range(word, sizeof(uint32_t), call);
    if (address % sizeof(uint32_t) != 0) defect("%s: %s is no aligned word", call, place_of(word).c_str());
    if (region.kind != REGION_DEVICE)
        defect("%s: %s is no memory of this rank's GPU, which is not modelled", call, place_of(word).c_str());
    return word;
}

int write_value(cudaStream_t stream, unsigned long long address, uint32_t value, unsigned flags) {
    void *word = word_of(address, "cuStreamWriteValue32");
    if (sticky() != cudaSuccess) return answer(sticky());
    if (!options().memory_operations || (flags & NO_MEMORY_BARRIER) != 0) return answer(cudaErrorNotSupported);
    Op op = flag_op("writing a word", STEP_RAISE, word, value);
    op.step = [=](const Access &access) { return raise(access, word, value), OUTCOME_DONE; };
    raising().insert(stream);
    if (dry()) *(uint32_t *)word = value;
    enqueue(stream, std::move(op));
    return answer(cudaSuccess);
}

int wait_value(cudaStream_t stream, unsigned long long address, uint32_t value, unsigned flags) {
    void *word = word_of(address, "cuStreamWaitValue32");
    if (sticky() != cudaSuccess) return answer(sticky());
    if (!options().memory_operations || (flags & ~(unsigned)WAIT_FLUSH) != 0) return answer(cudaErrorNotSupported);
    Op op = flag_op("waiting for a word", STEP_AWAIT, word, value);
    op.step = [=](const Access &) { return raised(stream, word, value, flags != 0) ? OUTCOME_DONE : OUTCOME_WAITS; };
    op.waits_for = [] { return std::string("a flag of another rank"); };
    enqueue(stream, std::move(op));
    return answer(cudaSuccess);
}

} // namespace

bool raises_flags(cudaStream_t stream) { return raising().count(stream) > 0; }

// In a dry run the host writes the word when it queues the write, so the value is known at the call.
void copy_flag(void *to, const void *from, cudaStream_t stream) {
    double seconds = dry() ? cost_copy(&dry_figures().cost, sizeof(uint32_t)) : 0;
    Op op = flag_op("a copy of a flag", STEP_RAISE, to, dry() ? *(const uint32_t *)from : 0, seconds);
    op.step = [=](const Access &access) {
        return raise(access, to, __atomic_load_n((const uint32_t *)from, __ATOMIC_SEQ_CST)), OUTCOME_DONE;
    };
    enqueue(stream, std::move(op));
}

} // namespace virtual_gpu

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned,
                                                        unsigned long long, void *) {
    *function = strcmp(symbol, "cuStreamWriteValue32") == 0  ? (void *)virtual_gpu::write_value
                : strcmp(symbol, "cuStreamWaitValue32") == 0 ? (void *)virtual_gpu::wait_value
                                                             : nullptr;
    return virtual_gpu::answer(cudaSuccess);
}
