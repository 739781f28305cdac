// The library's half of messages.c: the host's clock goes with the messages that the program sends through MPI.
#include "messages.h"
#include "virtual.h"

#include <cstring>
#include <dlfcn.h>

namespace virtual_gpu {

namespace {

void sent(int to) {
    auto lock = device_lock();
    int self = process() * CONTEXTS + HOST;
    Clock &clock = host_clock();
    {
        JobLock job_lock;
        job()->mail[process()][to].copy(clock);
    }
    clock.set(self, clock.get(self) + 1);
    progressed();
}

void received(int from) {
    auto lock = device_lock();
    JobLock job_lock;
    const SharedClock *mail = &job()->mail[from][process()];
    host_clock().join(mail->at, mail->width);
    progressed();
}

void touched(void *memory, int64_t bytes, bool writes) {
    if (memory == nullptr || bytes == 0) return;
    Region region = region_of(memory);
    if (region.kind == REGION_NONE) return;
    if (region.kind != REGION_PINNED)
        defect("MPI is given %s: it reads and writes host memory", place_of(memory).c_str());
    auto lock = device_lock();
    touch(host_access("MPI"), memory, bytes, writes);
}

} // namespace

void connect_messages() {
    VirtualMessages *table = (VirtualMessages *)dlsym(RTLD_DEFAULT, "virtual_messages");
    if (table != nullptr) *table = {sent, received, touched}; // test_cuda sends no messages
}

} // namespace virtual_gpu
