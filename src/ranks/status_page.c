#include "status_page.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct Doing {
    char action[96], wait[64];
    int32_t wait_stage;
} Doing;

// A rank may be killed between any two instructions, so what it writes has to be whole at every moment: texts are
// written beside the one that counts, and a counter moves over afterwards.
typedef struct Page {
    _Alignas(128) _Atomic int32_t pid;
    _Atomic int32_t stage; // plus one, so that an empty page says -1
    _Atomic int32_t ready;
    _Atomic int32_t claimed;  // somebody is writing the report
    _Atomic int32_t reported; // the report is whole
    int32_t code;
    char text[1024];
    _Atomic int64_t beats, progress;
    _Atomic uint32_t turn; // what counts is doing[turn % 2]
    Doing doing[2];
} Page;

typedef struct Sheet {
    int32_t ranks;
    _Atomic int32_t reports;
    Page pages[];
} Sheet;

struct StatusPage {
    Sheet *sheet;
    size_t bytes;
    Page *own; // NULL for the parent
    bool shared;
};

static size_t sheet_bytes_(int ranks) {
    return sizeof(Sheet) + (size_t)ranks * sizeof(Page);
}

// file -1: memory of this process.
static StatusPage *page_map_(int file, size_t bytes) {
    StatusPage *status_page = calloc(1, sizeof *status_page);
    if (status_page == NULL) return NULL;
    void *sheet = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
    if (sheet == MAP_FAILED) {
        free(status_page);
        return NULL;
    }
    status_page->sheet = sheet;
    status_page->bytes = bytes;
    status_page->shared = file >= 0;
    return status_page;
}

StatusPage *status_page_create(const char *path, int ranks, Error *err) {
    StatusPage *status_page = NULL;
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    // posix_fallocate, not a hole: a full file system is an error here, and a fatal signal at the first write otherwise.
    if (file >= 0 && posix_fallocate(file, 0, (off_t)sheet_bytes_(ranks)) == 0)
        status_page = page_map_(file, sheet_bytes_(ranks));
    if (file >= 0) close(file);
    if (status_page == NULL) {
        error_set(err, EXIT_FAILED, "cannot write %s, through which the ranks report; is there space left?", path);
        return NULL;
    }
    status_page->sheet->ranks = ranks;
    return status_page;
}

int status_page_launched_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL) return atoi(getenv(names[i]));
    return -1;
}

static void own_page_(StatusPage *status_page, int rank) {
    status_page->own = &status_page->sheet->pages[rank];
    status_page->own->doing[0].wait_stage = -1;
    atomic_store(&status_page->own->pid, (int32_t)getpid());
}

StatusPage *status_page_attach(int rank) {
    const char *path = getenv(STATUS_PAGE_VARIABLE);
    if (path == NULL) return NULL;
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct stat status;
    if (file < 0) return NULL;
    StatusPage *status_page = NULL;
    if (fstat(file, &status) == 0 && status.st_size >= (off_t)sheet_bytes_(1))
        status_page = page_map_(file, (size_t)status.st_size);
    close(file);
    if (status_page == NULL) return NULL;
    if (rank < 0) rank = status_page_launched_rank();
    if (rank < 0 || rank >= status_page->sheet->ranks || sheet_bytes_(status_page->sheet->ranks) > status_page->bytes) {
        status_page_close(status_page);
        return NULL;
    }
    own_page_(status_page, rank);
    return status_page;
}

StatusPage *status_page_alone(void) {
    StatusPage *status_page = page_map_(-1, sheet_bytes_(1));
    if (status_page != NULL) own_page_(status_page, 0);
    return status_page;
}

static Page *own_(StatusPage *status_page) {
    return status_page == NULL ? NULL : status_page->own;
}

void status_page_set_stage(StatusPage *status_page, int stage) {
    Page *page = own_(status_page);
    if (page != NULL) atomic_store(&page->stage, stage + 1);
}

void status_page_set_ready(StatusPage *status_page) {
    Page *page = own_(status_page);
    if (page != NULL) atomic_store(&page->ready, 1);
}

// Copies what fits and always ends it.
static void copy_text_(char *to, size_t size, const char *from) {
    size_t length = strnlen(from, size - 1);
    memcpy(to, from, length);
    to[length] = '\0';
}

// Written beside what stands there, which counts until the turn moves on.
static void page_say_(Page *page, const char *action, const char *wait, int wait_stage) {
    uint32_t turn = atomic_load_explicit(&page->turn, memory_order_relaxed);
    Doing *next = &page->doing[(turn + 1) % 2];
    copy_text_(next->action, sizeof next->action, action != NULL ? action : page->doing[turn % 2].action);
    copy_text_(next->wait, sizeof next->wait, wait != NULL ? wait : "");
    next->wait_stage = wait_stage;
    atomic_store_explicit(&page->turn, turn + 1, memory_order_release);
}

void status_page_set_action(StatusPage *status_page, const char *action) {
    Page *page = own_(status_page);
    if (page == NULL) return;
    page_say_(page, action, NULL, -1);
    status_page_progress(status_page);
}

void status_page_set_wait(StatusPage *status_page, const char *what, int stage) {
    Page *page = own_(status_page);
    if (page != NULL) page_say_(page, NULL, what, stage);
}

void status_page_progress(StatusPage *status_page) {
    Page *page = own_(status_page);
    if (page != NULL) atomic_fetch_add_explicit(&page->progress, 1, memory_order_relaxed);
}

void status_page_beat(StatusPage *status_page) {
    Page *page = own_(status_page);
    if (page != NULL) atomic_fetch_add_explicit(&page->beats, 1, memory_order_relaxed);
}

bool status_page_shared(const StatusPage *status_page) {
    return status_page != NULL && status_page->shared;
}

bool status_page_report(StatusPage *status_page, int code, const char *text) {
    Page *page = own_(status_page);
    if (page == NULL || !status_page->shared) return false;
    if (atomic_exchange(&page->claimed, 1) != 0) return true;
    page->code = code;
    copy_text_(page->text, sizeof page->text, text == NULL ? "" : text);
    atomic_store(&page->reported, atomic_fetch_add(&status_page->sheet->reports, 1) + 1);
    return true;
}

int status_page_leave(StatusPage *status_page, int code) {
    return status_page_report(status_page, code, "") ? 0 : code;
}

int status_page_ranks(const StatusPage *status_page) {
    return status_page == NULL ? 0 : status_page->sheet->ranks;
}

// The writer may move on while the text is copied; after two moves it writes into this very half.
static void read_doing_(const Page *from, StatusRank *to) {
    uint32_t before, after;
    do {
        before = atomic_load_explicit(&from->turn, memory_order_acquire);
        const Doing *doing = &from->doing[before % 2];
        copy_text_(to->action, sizeof to->action, doing->action);
        copy_text_(to->wait, sizeof to->wait, doing->wait);
        to->wait_stage = doing->wait_stage;
        atomic_thread_fence(memory_order_acquire);
        after = atomic_load_explicit(&from->turn, memory_order_relaxed);
    } while (before != after);
}

static void read_page_(const Page *from, StatusRank *page) {
    *page = (StatusRank){.pid = atomic_load(&from->pid),
                         .stage = atomic_load(&from->stage) - 1,
                         .ready = atomic_load(&from->ready) != 0,
                         .reported = atomic_load(&from->reported),
                         .beats = atomic_load(&from->beats),
                         .progress = atomic_load(&from->progress)};
    read_doing_(from, page);
    if (page->reported == 0) return;
    page->code = from->code;
    copy_text_(page->text, sizeof page->text, from->text);
}

int status_page_read(const StatusPage *status_page, int rank, StatusRank *page) {
    if (rank < 0 || rank >= status_page_ranks(status_page)) return -1;
    read_page_(&status_page->sheet->pages[rank], page);
    return 0;
}

void status_page_read_own(const StatusPage *status_page, StatusRank *page) {
    if (status_page != NULL && status_page->own != NULL)
        read_page_(status_page->own, page);
    else
        *page = (StatusRank){.stage = -1, .wait_stage = -1};
}

void status_page_close(StatusPage *status_page) {
    if (status_page == NULL) return;
    munmap(status_page->sheet, status_page->bytes);
    free(status_page);
}
