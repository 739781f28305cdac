// Fibers, barriers and shared memory for emulate.h.
#include "emulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <list>
#include <string>
#include <vector>

EmulateLaunch emulate = {dim3(), dim3(), dim3(), dim3(), EMULATE_ASCENDING, -1};

namespace {

// Stacks a power of two apart would have their ends in the same few sets of the processor's caches.
enum { WARP = 32, STACK = (64 << 10) + 320, MAX_THREADS = 1024, GUARD = 64, POISON = 0xff, MARK = 0xa5 };
constexpr int64_t SHARED_BYTES = 256 << 10;

// --- switching stacks: push the registers that a call must preserve, exchange the stack pointer, pop the registers

#ifdef __x86_64__
typedef void *Stack;

extern "C" void emulate_switch(Stack *from, Stack to);
asm(R"(
.text
.globl emulate_switch
.type emulate_switch, @function
emulate_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulate_switch, .-emulate_switch
)");

// A stack from which the first switch "returns" into `start`, aligned as at a call.
void stack_prepare(Stack *stack, char *memory, void (*start)(void)) {
    void **top = (void **)(memory + STACK) - 2;
    *top = (void *)start;
    for (int i = 1; i <= 6; i++) top[-i] = nullptr;
    *stack = top - 6;
}

#else
#include <ucontext.h>
typedef ucontext_t Stack;

void emulate_switch(Stack *from, Stack &to) { swapcontext(from, &to); }

void stack_prepare(Stack *stack, char *memory, void (*start)(void)) {
    getcontext(stack);
    stack->uc_stack.ss_sp = memory;
    stack->uc_stack.ss_size = STACK;
    stack->uc_link = nullptr;
    makecontext(stack, start, 0);
}
#endif

// --- the block under way

enum State { READY, AT_BARRIER, AT_EXCHANGE, DONE };

struct Warp {
    uint64_t values[2][WARP]; // used in turn: a lane that is ahead must not overwrite values still to be read
    int arrived;
};

struct Array {
    const void *key;
    int64_t at, bytes;
};

struct Block {
    Stack scheduler, stacks[MAX_THREADS];
    State state[MAX_THREADS];
    int turn[MAX_THREADS]; // exchanges a thread has taken part in
    dim3 index[MAX_THREADS];
    std::vector<int> order; // threads in the order of their turns; a warp's are consecutive
    int place[MAX_THREADS]; // of a thread in that order
    Warp warps[MAX_THREADS / WARP];
    int threads, running, waiting, done;
    char *memory; // stacks, then shared memory
    std::vector<Array> arrays;
    int64_t shared_used, dynamic_bytes;
    void (*body)(void *);
    void *context;
    std::string failure;
};

Block *block_now;

char *shared_memory() { return block_now->memory + (int64_t)MAX_THREADS * STACK; }

// Switches from `from` to the thread. Returns when `from` has its next turn.
void turn_give(Stack *from, int thread) {
    block_now->running = thread;
    emulate.thread_index = block_now->index[thread];
    emulate_switch(from, block_now->stacks[thread]);
}

// Ends the running thread's turn. Switches directly to the warp's next lane if that is ready, else to the scheduler.
void wait_as(State state) {
    Block *b = block_now;
    int me = b->running, place = b->place[me] + 1, next = place < b->threads ? b->order[(size_t)place] : me;
    b->state[me] = state;
    if (next / WARP == me / WARP && b->state[next] == READY && b->failure.empty()) turn_give(&b->stacks[me], next);
    else emulate_switch(&b->stacks[me], b->scheduler);
}

// Ends the block; its fibers are abandoned. noipa hides that the function does not return: AddressSanitizer prepares
// for such calls, and would warn that it does not know this stack.
__attribute__((noipa)) void fail(const std::string &what) {
    if (block_now->failure.empty()) block_now->failure = what;
    wait_as(DONE);
    abort();
}

void fiber_start(void) {
    block_now->body(block_now->context);
    block_now->done++;
    wait_as(DONE);
}

// Returns the next number of a linear congruential generator.
unsigned random_next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

void order_fill(std::vector<int64_t> &order, int64_t count, unsigned seed) {
    order.resize((size_t)count);
    for (int64_t i = 0; i < count; i++) order[(size_t)i] = emulate.order == EMULATE_DESCENDING ? count - 1 - i : i;
    if (emulate.order != EMULATE_SHUFFLED) return;
    for (int64_t i = count - 1; i > 0; i--) std::swap(order[(size_t)i], order[random_next(&seed) % (size_t)(i + 1)]);
}

void arrays_check(void) {
    Block *b = block_now;
    const char *shared = shared_memory();
    for (const Array &array : b->arrays)
        for (int i = 0; i < GUARD; i++)
            if ((unsigned char)shared[array.at + array.bytes + i] != MARK)
                b->failure = "wrote past the end of " + std::to_string(array.bytes) + " bytes of shared memory";
}

int64_t array_add(const void *key, int64_t bytes) {
    Block *b = block_now;
    int64_t at = b->shared_used;
    if (at + bytes + GUARD > SHARED_BYTES + 64 * GUARD) fail("asks for more shared memory than a GPU has");
    char *memory = shared_memory() + at;
    memset(memory, POISON, (size_t)bytes);
    memset(memory + bytes, MARK, GUARD);
    b->arrays.push_back({key, at, bytes});
    b->shared_used = (at + bytes + GUARD + 15) / 16 * 16;
    return at;
}

// Releases the barrier if all live threads have reached it. Returns whether it did.
bool release(void) {
    Block *b = block_now;
    if (b->waiting == 0 || b->waiting + b->done < b->threads) return false;
    for (int t = 0; t < b->threads; t++)
        if (b->state[t] == AT_BARRIER) b->state[t] = READY;
    b->waiting = 0;
    return true;
}

void threads_order(void) {
    Block *b = block_now;
    unsigned x = emulate.block.x, y = emulate.block.y;
    std::vector<int64_t> warps, lanes;
    order_fill(warps, (b->threads + WARP - 1) / WARP, 2);
    order_fill(lanes, WARP, 3);
    b->order.clear();
    for (int64_t warp : warps)
        for (int64_t lane : lanes)
            if (warp * WARP + lane < b->threads) b->order.push_back((int)(warp * WARP + lane));
    for (unsigned t = 0; t < (unsigned)b->threads; t++) {
        b->index[t] = dim3(t % x, t / x % y, t / (x * y));
        b->place[b->order[t]] = (int)t;
    }
}

// Runs the warp that begins at this place of the order as far as it gets. Returns whether it moved. A warp that runs
// ahead overwrites values that other warps have not read yet, which shows a missing barrier.
bool warp_run(int place) {
    Block *b = block_now;
    int warp = b->order[(size_t)place] / WARP;
    bool moved = false, again = true;
    while (again && b->failure.empty()) {
        again = false;
        for (int p = place; p < b->threads && b->order[(size_t)p] / WARP == warp; p++) {
            int thread = b->order[(size_t)p];
            if (b->state[thread] != READY || !b->failure.empty()) continue;
            moved = again = true;
            turn_give(&b->scheduler, thread);
        }
    }
    return moved;
}

void block_run(char *memory) {
    Block *b = block_now;
    for (int t = 0; t < b->threads; t++) {
        stack_prepare(&b->stacks[t], memory + (int64_t)t * STACK, fiber_start);
        b->state[t] = READY, b->turn[t] = 0;
    }
    for (Warp &warp : b->warps) warp.arrived = 0;
    b->waiting = b->done = 0;
    b->arrays.clear(), b->shared_used = 0;
    if (b->dynamic_bytes > 0) array_add(nullptr, b->dynamic_bytes);
    while (b->done < b->threads && b->failure.empty()) {
        bool moved = false;
        for (int place = 0; place < b->threads; place++)
            if (place == 0 || b->order[(size_t)place] / WARP != b->order[(size_t)place - 1] / WARP)
                moved = warp_run(place) || moved;
        if (!b->failure.empty()) return;
        if (!release() && !moved) {
            b->failure = "waits forever: a part of the block or of a warp is at a barrier that the rest never reaches";
            return;
        }
    }
    arrays_check();
}

void block_index(int64_t i) {
    int64_t x = emulate.grid.x, y = emulate.grid.y;
    emulate.block_index = dim3((unsigned)(i % x), (unsigned)(i / x % y), (unsigned)(i / (x * y)));
}

// Returns the failure and its place, in memory that is never freed, since a backend keeps the pointer.
const char *failure_text(const char *kernel) {
    const dim3 &at = emulate.block_index;
    std::string text = std::string(kernel) + ", block (" + std::to_string(at.x) + ", " + std::to_string(at.y) +
                       "): " + block_now->failure;
    static std::list<std::string> kept;
    kept.push_back(text);
    return kept.back().c_str();
}

} // namespace

void emulate_barrier(void) {
    block_now->waiting++;
    wait_as(AT_BARRIER);
}

const uint64_t *emulate_exchange(uint64_t value) {
    Block *b = block_now;
    int me = b->running, first = me / WARP * WARP;
    Warp *warp = &b->warps[me / WARP];
    uint64_t *values = warp->values[b->turn[me]++ % 2];
    if (first + WARP > b->threads) fail("a shuffle in a warp of less than 32 threads");
    values[me - first] = value;
    if (++warp->arrived < WARP) {
        wait_as(AT_EXCHANGE);
        return values;
    }
    warp->arrived = 0;
    for (int lane = first; lane < first + WARP; lane++)
        if (lane != me) b->state[lane] = READY;
    return values;
}

void *emulate_shared(const void *key, int64_t bytes) {
    for (const Array &array : block_now->arrays)
        if (array.key == key) return shared_memory() + array.at;
    return shared_memory() + array_add(key, bytes);
}

void *emulate_shared_dynamic(void) { return shared_memory(); }

void emulate_check_aligned(const void *pointer, int64_t bytes) {
    if ((uintptr_t)pointer % (uintptr_t)bytes != 0)
        fail("an access of " + std::to_string(bytes) + " bytes at an address that is not a multiple of that");
}

const char *emulate_run(dim3 grid, dim3 block, int64_t shared_bytes, void (*body)(void *), void *context,
                        const char *kernel) {
    const int64_t blocks = (int64_t)grid.x * grid.y * grid.z, threads = (int64_t)block.x * block.y * block.z;
    const size_t bytes = (size_t)MAX_THREADS * STACK + SHARED_BYTES + 128 * GUARD;
    if (blocks == 0) return nullptr;
    static Block state; // large, and the same for every launch
    block_now = &state;
    if (!state.memory) // never given back: stacks of fibers that wait forever may be in use until the end
        state.memory = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    emulate.grid = grid, emulate.block = block;
    state.threads = (int)threads, state.body = body, state.context = context, state.dynamic_bytes = shared_bytes;
    state.failure.clear();
    if (threads < 1 || threads > MAX_THREADS) state.failure = "a block of " + std::to_string(threads) + " threads";
    if (shared_bytes > 227 << 10) state.failure = "more shared memory than a GPU has";
    std::vector<int64_t> block_order;
    if (emulate.only >= 0) block_order = {emulate.only};
    else order_fill(block_order, blocks, 1);
    if (state.failure.empty()) threads_order();
    for (int64_t i : block_order) {
        block_index(i);
        if (state.failure.empty()) block_run(state.memory);
        if (!state.failure.empty()) return failure_text(kernel);
    }
    return nullptr;
}
