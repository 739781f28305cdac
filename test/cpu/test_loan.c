// Memory lent to another process of the host: each reads the other's writes, and only lent memory can be mapped.
#include "cpu/cpu.h"
#include "op_check.h"

#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 3 << 20 };

static Backend *cpu(void) {
    Error err = {0};
    Backend *backend = backend_cpu_create(PRECISION_FP32, 1, &err);
    if (backend == NULL) fail_msg("%s", err.text);
    return backend;
}

// Runs in the other process. Returns 0 if it read `lent` everywhere and wrote `answer` everywhere.
static int borrow_and_answer(const Loan *loan, unsigned char lent, unsigned char answer) {
    Error err = {0};
    Backend *backend = backend_cpu_create(PRECISION_FP32, 1, &err);
    unsigned char *memory = backend->borrow(backend, loan, BYTES, &err);
    if (memory == NULL) return 1;
    int wrong = 0;
    for (int64_t i = 0; i < BYTES; i++) wrong |= memory[i] != lent;
    memset(memory, answer, BYTES);
    backend->give_back(backend, memory, BYTES);
    return wrong ? 2 : 0;
}

TEST(what_one_process_writes_the_other_reads) {
    Error err = {0};
    Loan loan;
    Backend *backend = cpu();
    unsigned char *memory = backend->allocate(backend, MEMORY_LENT_SLOTS, BYTES, "lent", &err);
    assert_non_null(memory);
    for (int64_t i = 0; i < BYTES; i++) assert_int_equal(memory[i], 0);
    memset(memory, 7, BYTES);
    assert_int_equal(backend->lend(backend, memory, BYTES, &loan, &err), 0);
    pid_t child = fork();
    if (child == 0) _exit(borrow_and_answer(&loan, 7, 9));
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WEXITSTATUS(status), 0);
    for (int64_t i = 0; i < BYTES; i++) assert_int_equal(memory[i], 9);
    backend->release(backend, MEMORY_LENT_SLOTS, memory, BYTES);
    assert_int_equal(backend->held.bytes[MEMORY_LENT_SLOTS], 0);
    backend->destroy(backend);
}

TEST(only_what_was_allocated_to_be_lent_is_lent) {
    Error err = {0};
    Loan loan;
    Backend *backend = cpu();
    void *own = backend->allocate(backend, MEMORY_OWN_SLOTS, BYTES, "own", &err);
    void *lent = backend->allocate(backend, MEMORY_LENT_SLOTS, BYTES, "lent", &err);
    void *second = backend->allocate(backend, MEMORY_LENT_SLOTS, BYTES, "lent", &err);
    assert_true(own != NULL && lent != NULL && second != NULL);
    assert_int_equal(backend->lend(backend, own, BYTES, &loan, &err), -1);
    err = (Error){0};
    assert_int_equal(backend->lend(backend, second, BYTES, &loan, &err), -1); // only one piece can be lent
    backend->release(backend, MEMORY_LENT_SLOTS, second, BYTES);
    backend->release(backend, MEMORY_LENT_SLOTS, lent, BYTES);
    backend->release(backend, MEMORY_OWN_SLOTS, own, BYTES);
    backend->destroy(backend);
}

TEST(a_loan_that_is_gone_is_refused) {
    Error err = {0};
    Loan loan;
    Backend *backend = cpu();
    void *memory = backend->allocate(backend, MEMORY_LENT_SLOTS, BYTES, "lent", &err);
    assert_int_equal(backend->lend(backend, memory, BYTES, &loan, &err), 0);
    assert_null(backend->borrow(backend, &loan, 2 * BYTES, &err)); // more than there is
    err = (Error){0};
    backend->release(backend, MEMORY_LENT_SLOTS, memory, BYTES);
    assert_null(backend->borrow(backend, &loan, BYTES, &err));
    assert_non_null(strstr(err.text, "cannot be mapped"));
    backend->destroy(backend);
}
