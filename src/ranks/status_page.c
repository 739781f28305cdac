// The page of one rank: two copies of its status. A counter selects the valid one. A change is written into the other
// copy before the counter changes, so a kill at any instruction leaves a complete status. Only the rank's main thread
// changes it.
#include "status_page.h"
#include "base/clock.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

struct StatusPage {
    bool printed;
    _Atomic int64_t progress, saved; // changed by any thread
    _Atomic uint32_t turn;           // copies[turn % 2] is valid
    RankStatus copies[2];
};

StatusPage *status_page_create(bool printed) {
    void *memory = mmap(NULL, sizeof(StatusPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    StatusPage *page = memory;
    page->printed = printed;
    page->copies[0] = (RankStatus){.stage = -1, .wait_stage = -1};
    return page;
}

// Returns a copy of the status to change; publish_ makes it the valid one.
static RankStatus *change_(StatusPage *page) {
    uint32_t turn = atomic_load_explicit(&page->turn, memory_order_relaxed);
    page->copies[(turn + 1) % 2] = page->copies[turn % 2];
    return &page->copies[(turn + 1) % 2];
}

static void publish_(StatusPage *page) { atomic_fetch_add_explicit(&page->turn, 1, memory_order_release); }

void status_page_set_stage(StatusPage *page, int stage) {
    if (page == NULL) return;
    change_(page)->stage = stage;
    publish_(page);
}

void status_page_set_step(StatusPage *page, int64_t step) {
    if (page == NULL) return;
    RankStatus *next = change_(page);
    if (next->began == 0) next->began = step;
    next->step = step;
    publish_(page);
}

void status_page_set_ready(StatusPage *page) {
    if (page == NULL) return;
    change_(page)->ready = 1;
    publish_(page);
}

void status_copy_text(char *to, size_t size, const char *from) {
    size_t length = strnlen(from, size - 1);
    memmove(to, from, length);
    to[length] = '\0';
}

void status_page_set_action(StatusPage *page, const char *action) {
    if (page == NULL) return;
    RankStatus *next = change_(page);
    status_copy_text(next->action, sizeof next->action, action);
    next->wait[0] = '\0';
    next->wait_stage = -1;
    publish_(page);
    status_page_progress(page);
}

void status_page_set_wait(StatusPage *page, const char *what, int stage) {
    if (page == NULL) return;
    RankStatus *next = change_(page);
    status_copy_text(next->wait, sizeof next->wait, what != NULL ? what : "");
    next->wait_stage = stage;
    publish_(page);
}

void status_page_progress(StatusPage *page) {
    if (page != NULL) atomic_fetch_add_explicit(&page->progress, 1, memory_order_relaxed);
}

void status_page_set_saved(StatusPage *page) {
    if (page != NULL) atomic_store(&page->saved, 1);
}

bool status_page_report(StatusPage *page, const Error *err) {
    if (page == NULL) return false;
    RankStatus *next = change_(page);
    if (next->ending != ENDING_NONE) return page->printed;
    next->ending = ENDING_REPORTED;
    next->code = err->code & 0xff;
    next->when = clock_wall_ns() - (int64_t)(1e9 * (clock_seconds() - err->when));
    status_copy_text(next->text, sizeof next->text, err->text);
    publish_(page);
    return page->printed;
}

bool status_page_printed(const StatusPage *page) { return page != NULL && page->printed; }

void status_page_leave(StatusPage *page, int code) {
    if (page == NULL) return;
    RankStatus *next = change_(page);
    if (next->ending == ENDING_NONE) next->code = code & 0xff;
    next->ending = ENDING_LEFT;
    publish_(page);
}

void status_page_read(const StatusPage *page, RankStatus *status) {
    *status = (RankStatus){.stage = -1, .wait_stage = -1};
    if (page == NULL) return;
    uint32_t before, after; // the rank may write meanwhile: copies again if the valid copy has changed
    do {
        before = atomic_load_explicit(&page->turn, memory_order_acquire);
        *status = page->copies[before % 2];
        atomic_thread_fence(memory_order_acquire);
        after = atomic_load_explicit(&page->turn, memory_order_relaxed);
    } while (before != after);
    status->progress = atomic_load(&page->progress), status->saved = atomic_load(&page->saved);
}
