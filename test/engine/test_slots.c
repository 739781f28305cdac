// Slots in host memory. The states of slots in sound schedules: test_schedules.py.
#include "engine/slots.h"
#include "unit.h"

TEST(too_little_host_memory_for_slots_is_an_error_with_a_remedy) {
    Backend *be = backend_cpu_create(PRECISION_FP32, 1, NULL);
    SlotPool pool;
    assert_refused(slots_create(&pool, be, SLOTS_ON_HOST, 1 << 20, (int64_t)1 << 30, &unit_error),
                   EXIT_FAILED, // 2^50 bytes
                   "cannot allocate 1048576.00 GiB of host memory");
    assert_contains(unit_error.text, "schedule.evict_to");
    slots_destroy(&pool);
    be->destroy(be);
}
