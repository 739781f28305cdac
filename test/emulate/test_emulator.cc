// The emulator finds the mistakes that it is made for, one in each kernel here, and accepts correct kernels.
#include "cuda/launch.cuh"
#include "cuda/kernels/row.cuh"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

extern "C" {
#include <cmocka.h>
}

namespace {

enum { THREADS = 96 };

CudaBackend backend_make(EmulateOrder order) {
    emulate.order = order;
    return CudaBackend{};
}

// Each thread hands its number to its neighbour.
void neighbours_kernel(float *out, bool barrier) {
    SHARED(float, numbers, THREADS);
    numbers[threadIdx.x] = (float)(threadIdx.x + 1000 * blockIdx.x);
    if (barrier) __syncthreads();
    out[blockIdx.x * THREADS + threadIdx.x] = numbers[(threadIdx.x + 1) % THREADS];
}

bool neighbours_right(EmulateOrder order, bool barrier) {
    float out[2 * THREADS];
    CudaBackend cuda = backend_make(order);
    CUDA_LAUNCH(&cuda, 2, THREADS, 0, neighbours_kernel, out, barrier);
    assert_null(cuda.failed_at);
    for (unsigned i = 0; i < 2 * THREADS; i++)
        if (out[i] != (float)((i % THREADS + 1) % THREADS + 1000 * (i / THREADS))) return false;
    return true;
}

void a_missing_barrier_shows(void **) {
    for (int order = EMULATE_ASCENDING; order <= EMULATE_SHUFFLED; order++) {
        assert_true(neighbours_right((EmulateOrder)order, true));
        assert_false(neighbours_right((EmulateOrder)order, false));
    }
}

// Passes each value one thread up: in ascending order it is always written before it is read.
void upwards_kernel(float *out) {
    SHARED(float, numbers, THREADS + 1);
    if (threadIdx.x == 0) numbers[0] = 0.0f;
    numbers[threadIdx.x + 1] = (float)threadIdx.x;
    out[threadIdx.x] = numbers[threadIdx.x];
}

void one_of_two_orders_shows_any_missing_barrier(void **) {
    float up[THREADS], down[THREADS];
    CudaBackend cuda = backend_make(EMULATE_ASCENDING);
    CUDA_LAUNCH(&cuda, 1, THREADS, 0, upwards_kernel, up);
    emulate.order = EMULATE_DESCENDING;
    CUDA_LAUNCH(&cuda, 1, THREADS, 0, upwards_kernel, down);
    assert_memory_not_equal(up, down, sizeof up);
}

// Two consecutive reductions in one workspace: a warp that is ahead overwrites values that others have yet to read.
void reused_room_kernel(float *out, bool barrier) {
    SHARED(float, scratch, WARP);
    float first[1] = {(float)threadIdx.x}, second[1] = {2.0f};
    block_sum(first, scratch);
    if (barrier) __syncthreads();
    block_sum(second, scratch);
    out[threadIdx.x] = first[0] + second[0];
}

void workspace_used_again_too_early_shows(void **) {
    for (int barrier = 0; barrier < 2; barrier++) {
        int wrong = 0;
        for (int order = EMULATE_ASCENDING; order <= EMULATE_DESCENDING; order++) {
            float out[THREADS];
            CudaBackend cuda = backend_make((EmulateOrder)order);
            CUDA_LAUNCH(&cuda, 1, THREADS, 0, reused_room_kernel, out, barrier != 0);
            for (int i = 0; i < THREADS; i++) wrong += out[i] != THREADS * (THREADS - 1) / 2 + 2.0f * THREADS;
        }
        assert_true(barrier ? wrong == 0 : wrong > 0);
    }
}

// A block reads what another one wrote.
void chain_kernel(float *numbers) {
    if (threadIdx.x == 0) numbers[blockIdx.x + 1] = numbers[blockIdx.x] + 1.0f;
}

void blocks_that_depend_on_each_other_show(void **) {
    float up[9] = {0}, down[9] = {0};
    CudaBackend cuda = backend_make(EMULATE_ASCENDING);
    CUDA_LAUNCH(&cuda, 8, 32, 0, chain_kernel, up);
    emulate.order = EMULATE_DESCENDING;
    CUDA_LAUNCH(&cuda, 8, 32, 0, chain_kernel, down);
    assert_memory_not_equal(up, down, sizeof up);
}

void half_barrier_kernel(void) {
    if (threadIdx.x % 2) __syncthreads();
    float x[1] = {1.0f};
    warp_sum(x);
}

void half_shuffle_kernel(void) {
    float x[1] = {1.0f};
    if (threadIdx.x < 8) warp_sum(x);
}

void short_warp_kernel(void) {
    float x[1] = {1.0f};
    warp_sum(x);
}

void barriers_that_a_part_never_reaches_are_reported(void **) {
    CudaBackend barrier = backend_make(EMULATE_ASCENDING), shuffle = barrier, shorter = barrier;
    CUDA_LAUNCH(&barrier, 1, THREADS, 0, half_barrier_kernel);
    CUDA_LAUNCH(&shuffle, 1, THREADS, 0, half_shuffle_kernel);
    CUDA_LAUNCH(&shorter, 1, 40, 0, short_warp_kernel);
    assert_non_null(strstr(barrier.failed_at, "waits forever"));
    assert_non_null(strstr(shuffle.failed_at, "half_shuffle_kernel, block (0, 0): waits forever"));
    assert_non_null(strstr(shorter.failed_at, "less than 32 threads"));
}

void past_the_end_kernel(int count) {
    SHARED(float, numbers, THREADS);
    SHARED_DYNAMIC(float, dynamic);
    numbers[0] = dynamic[0] = 0.0f;
    if (count > 0) (blockIdx.x == 1 ? dynamic : numbers)[THREADS - 1 + count] = 1.0f;
}

void writes_past_shared_memory_are_reported(void **) {
    CudaBackend sound = backend_make(EMULATE_ASCENDING), one = sound, two = sound;
    CUDA_LAUNCH(&sound, 2, 32, THREADS * sizeof(float), past_the_end_kernel, 0);
    CUDA_LAUNCH(&one, 1, 32, THREADS * sizeof(float), past_the_end_kernel, 1);
    CUDA_LAUNCH(&two, 2, 32, (THREADS - 4) * sizeof(float), past_the_end_kernel, 2);
    assert_null(sound.failed_at);
    assert_non_null(strstr(one.failed_at, "block (0, 0): wrote past the end of 384 bytes"));
    assert_non_null(two.failed_at);
}

void read_kernel(float *out, const float *from) { store_floats<float, 4>(out, load_floats<4>(from)); }

void accesses_that_are_not_aligned_are_reported(void **) {
    alignas(16) float from[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[4] = {0};
    CudaBackend sound = backend_make(EMULATE_ASCENDING), bad = sound;
    CUDA_LAUNCH(&sound, 1, 1, 0, read_kernel, out, from + 4);
    CUDA_LAUNCH(&bad, 1, 1, 0, read_kernel, out, from + 1);
    assert_null(sound.failed_at);
    assert_memory_equal(out, from + 4, sizeof out);
    assert_non_null(strstr(bad.failed_at, "an access of 16 bytes"));
}

void unset_kernel(float *out) {
    SHARED(float, never, 1);
    out[blockIdx.x] = *never;
    *never = 1.0f;
}

void shared_memory_begins_as_nan_in_every_block(void **) {
    float out[3] = {0};
    CudaBackend cuda = backend_make(EMULATE_ASCENDING);
    CUDA_LAUNCH(&cuda, 3, 1, 0, unset_kernel, out);
    for (int i = 0; i < 3; i++) assert_true(isnan(out[i]));
}

void sums_kernel(float *out) {
    SHARED(float, scratch, 3 * WARP);
    float x[2] = {(float)threadIdx.x, 1.0f}, most = block_max((float)(threadIdx.x * 7 % 13), scratch);
    block_sum(x, scratch + WARP);
    if (threadIdx.x == blockDim.x - 1) out[0] = x[0], out[1] = x[1], out[2] = most;
}

void sums_and_maxima_reach_every_thread(void **) {
    for (unsigned threads = 32; threads <= 1024; threads += 96) {
        float out[3] = {0};
        CudaBackend cuda = backend_make(EMULATE_SHUFFLED);
        CUDA_LAUNCH(&cuda, 1, threads, 0, sums_kernel, out);
        assert_null(cuda.failed_at);
        assert_true(out[0] == (float)(threads * (threads - 1) / 2));
        assert_true(out[1] == (float)threads && out[2] == 12.0f);
    }
}

} // namespace

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_barrier_shows),
        cmocka_unit_test(one_of_two_orders_shows_any_missing_barrier),
        cmocka_unit_test(workspace_used_again_too_early_shows),
        cmocka_unit_test(blocks_that_depend_on_each_other_show),
        cmocka_unit_test(barriers_that_a_part_never_reaches_are_reported),
        cmocka_unit_test(writes_past_shared_memory_are_reported),
        cmocka_unit_test(accesses_that_are_not_aligned_are_reported),
        cmocka_unit_test(shared_memory_begins_as_nan_in_every_block),
        cmocka_unit_test(sums_and_maxima_reach_every_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
