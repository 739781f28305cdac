// The page of one rank: atomics for numbers, and two buffers for texts. A counter selects the valid buffer. A new text
// is written into the other buffer before the counter changes, so a kill at any instruction leaves a complete text.
#include "status_page.h"
#include "base/clock.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

typedef struct Doing {
    char action[STATUS_ACTION], wait[STATUS_WAIT];
    int32_t wait_stage;
} Doing;

struct StatusPage {
    bool printed;
    _Atomic int32_t stage, ready, left, reported;
    _Atomic int32_t claimed; // 1: a report was begun or the rank has left; later reports are ignored
    int32_t code;
    int64_t when;
    char text[STATUS_TEXT];
    _Atomic int64_t progress, began, step;
    _Atomic uint32_t turn; // doing[turn % 2] is valid
    Doing doing[2];
};

StatusPage *status_page_create(bool printed) {
    void *memory = mmap(NULL, sizeof(StatusPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    StatusPage *page = memory;
    page->printed = printed;
    page->doing[0].wait_stage = -1;
    atomic_store(&page->stage, -1);
    return page;
}

void status_page_set_stage(StatusPage *page, int stage) {
    if (page != NULL) atomic_store(&page->stage, stage);
}

void status_page_set_step(StatusPage *page, int64_t step) {
    if (page == NULL) return;
    if (atomic_load_explicit(&page->began, memory_order_relaxed) == 0)
        atomic_store_explicit(&page->began, step, memory_order_relaxed);
    atomic_store_explicit(&page->step, step, memory_order_relaxed);
}

void status_page_set_ready(StatusPage *page) {
    if (page != NULL) atomic_store(&page->ready, 1);
}

void status_copy_text(char *to, size_t size, const char *from) {
    size_t length = strnlen(from, size - 1);
    memmove(to, from, length);
    to[length] = '\0';
}

static void say_(StatusPage *page, const char *action, const char *wait, int wait_stage) {
    uint32_t turn = atomic_load_explicit(&page->turn, memory_order_relaxed);
    Doing *next = &page->doing[(turn + 1) % 2];
    status_copy_text(next->action, sizeof next->action, action != NULL ? action : page->doing[turn % 2].action);
    status_copy_text(next->wait, sizeof next->wait, wait != NULL ? wait : "");
    next->wait_stage = wait_stage;
    atomic_store_explicit(&page->turn, turn + 1, memory_order_release);
}

void status_page_set_action(StatusPage *page, const char *action) {
    if (page == NULL) return;
    say_(page, action, NULL, -1);
    status_page_progress(page);
}

void status_page_set_wait(StatusPage *page, const char *what, int stage) {
    if (page != NULL) say_(page, NULL, what, stage);
}

void status_page_progress(StatusPage *page) {
    if (page != NULL) atomic_fetch_add_explicit(&page->progress, 1, memory_order_relaxed);
}

bool status_page_report(StatusPage *page, const Error *err) {
    if (page == NULL) return false;
    if (atomic_exchange(&page->claimed, 1) != 0) return page->printed;
    page->code = err->code;
    page->when = clock_wall_ns() - (int64_t)(1e9 * (clock_seconds() - err->when));
    status_copy_text(page->text, sizeof page->text, err->text);
    atomic_store(&page->reported, 1);
    return page->printed;
}

bool status_page_printed(const StatusPage *page) { return page != NULL && page->printed; }

void status_page_leave(StatusPage *page, int code) {
    if (page == NULL) return;
    if (atomic_exchange(&page->claimed, 1) == 0) page->code = code;
    atomic_store(&page->left, 1);
}

void status_page_read(const StatusPage *page, RankStatus *status) {
    *status = (RankStatus){.stage = -1, .wait_stage = -1};
    if (page == NULL) return;
    status->stage = atomic_load(&page->stage);
    status->ready = atomic_load(&page->ready) != 0;
    status->progress = atomic_load(&page->progress);
    status->began = atomic_load(&page->began);
    status->step = atomic_load(&page->step);
    uint32_t before, after; // the rank may write meanwhile: copies the texts again if the valid buffer has changed
    do {
        before = atomic_load_explicit(&page->turn, memory_order_acquire);
        const Doing *doing = &page->doing[before % 2];
        status_copy_text(status->action, sizeof status->action, doing->action);
        status_copy_text(status->wait, sizeof status->wait, doing->wait);
        status->wait_stage = doing->wait_stage;
        atomic_thread_fence(memory_order_acquire);
        after = atomic_load_explicit(&page->turn, memory_order_relaxed);
    } while (before != after);
    bool left = atomic_load(&page->left) != 0, reported = atomic_load(&page->reported) != 0;
    status->ending = left ? ENDING_LEFT : reported ? ENDING_REPORTED : ENDING_NONE;
    if (left || reported) status->code = page->code & 0xff;
    if (!reported) return;
    status->when = page->when;
    status_copy_text(status->text, sizeof status->text, page->text);
}
