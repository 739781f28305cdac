// Slots in host memory. The states of slots: test_schedules.py.
#include "engine/slots.h"
#include "unit.h"

#include <string.h>

TEST(too_little_host_memory_for_slots_is_an_error_with_a_remedy) {
    Backend *be = backend_cpu_create(PRECISION_FP32, 1, NULL);
    SlotPool pool;
    Error err = {0};
    assert_int_equal(slots_create_host(&pool, be, 1 << 20, (int64_t)1 << 30, &err), -1); // 2^50 bytes
    assert_int_equal(err.code, EXIT_FAILED);
    assert_non_null(strstr(err.text, "cannot allocate 1048576.00 GiB of host memory"));
    assert_non_null(strstr(err.text, "schedule.evict_to"));
    slots_destroy(&pool);
    be->destroy(be);
}
