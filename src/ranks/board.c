#include "board.h"

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

struct Board {
    Sheet *sheet;
    size_t bytes;
    Page *own; // NULL for the parent
    bool shared;
};

static size_t sheet_bytes_(int ranks) {
    return sizeof(Sheet) + (size_t)ranks * sizeof(Page);
}

// file -1: memory of this process.
static Board *map_(int file, size_t bytes) {
    Board *board = calloc(1, sizeof *board);
    if (board == NULL) return NULL;
    void *sheet = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (file < 0 ? MAP_ANONYMOUS : 0), file, 0);
    if (sheet == MAP_FAILED) {
        free(board);
        return NULL;
    }
    board->sheet = sheet;
    board->bytes = bytes;
    board->shared = file >= 0;
    return board;
}

Board *board_create(const char *path, int ranks, Error *err) {
    Board *board = NULL;
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    // posix_fallocate, not a hole: a full file system is an error here, and a fatal signal at the first write otherwise.
    if (file >= 0 && posix_fallocate(file, 0, (off_t)sheet_bytes_(ranks)) == 0) board = map_(file, sheet_bytes_(ranks));
    if (file >= 0) close(file);
    if (board == NULL) {
        error_set(err, EXIT_FAILED, "cannot write %s, through which the ranks report; is there space left?", path);
        return NULL;
    }
    board->sheet->ranks = ranks;
    return board;
}

int board_launched_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL) return atoi(getenv(names[i]));
    return -1;
}

static void own_page_(Board *board, int rank) {
    board->own = &board->sheet->pages[rank];
    board->own->doing[0].wait_stage = -1;
    atomic_store(&board->own->pid, (int32_t)getpid());
}

Board *board_attach(int rank) {
    const char *path = getenv(BOARD_VARIABLE);
    if (path == NULL) return NULL;
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct stat status;
    if (file < 0) return NULL;
    Board *board = NULL;
    if (fstat(file, &status) == 0 && status.st_size >= (off_t)sheet_bytes_(1))
        board = map_(file, (size_t)status.st_size);
    close(file);
    if (board == NULL) return NULL;
    if (rank < 0) rank = board_launched_rank();
    if (rank < 0 || rank >= board->sheet->ranks || sheet_bytes_(board->sheet->ranks) > board->bytes) {
        board_close(board);
        return NULL;
    }
    own_page_(board, rank);
    return board;
}

Board *board_alone(void) {
    Board *board = map_(-1, sheet_bytes_(1));
    if (board != NULL) own_page_(board, 0);
    return board;
}

static Page *own_(Board *board) {
    return board == NULL ? NULL : board->own;
}

void board_set_stage(Board *board, int stage) {
    Page *page = own_(board);
    if (page != NULL) atomic_store(&page->stage, stage + 1);
}

void board_set_ready(Board *board) {
    Page *page = own_(board);
    if (page != NULL) atomic_store(&page->ready, 1);
}

// Copies what fits and always ends it.
static void copy_text_(char *to, size_t size, const char *from) {
    size_t length = strnlen(from, size - 1);
    memcpy(to, from, length);
    to[length] = '\0';
}

// Written beside what stands there, which counts until the turn moves on.
static void say_(Page *page, const char *action, const char *wait, int wait_stage) {
    uint32_t turn = atomic_load_explicit(&page->turn, memory_order_relaxed);
    Doing *next = &page->doing[(turn + 1) % 2];
    copy_text_(next->action, sizeof next->action, action != NULL ? action : page->doing[turn % 2].action);
    copy_text_(next->wait, sizeof next->wait, wait != NULL ? wait : "");
    next->wait_stage = wait_stage;
    atomic_store_explicit(&page->turn, turn + 1, memory_order_release);
}

void board_set_action(Board *board, const char *action) {
    Page *page = own_(board);
    if (page == NULL) return;
    say_(page, action, NULL, -1);
    board_progress(board);
}

void board_set_wait(Board *board, const char *what, int stage) {
    Page *page = own_(board);
    if (page != NULL) say_(page, NULL, what, stage);
}

void board_progress(Board *board) {
    Page *page = own_(board);
    if (page != NULL) atomic_fetch_add_explicit(&page->progress, 1, memory_order_relaxed);
}

void board_beat(Board *board) {
    Page *page = own_(board);
    if (page != NULL) atomic_fetch_add_explicit(&page->beats, 1, memory_order_relaxed);
}

bool board_shared(const Board *board) {
    return board != NULL && board->shared;
}

bool board_report(Board *board, int code, const char *text) {
    Page *page = own_(board);
    if (page == NULL || !board->shared) return false;
    if (atomic_exchange(&page->claimed, 1) != 0) return true;
    page->code = code;
    copy_text_(page->text, sizeof page->text, text == NULL ? "" : text);
    atomic_store(&page->reported, atomic_fetch_add(&board->sheet->reports, 1) + 1);
    return true;
}

int board_leave(Board *board, int code) {
    return board_report(board, code, "") ? 0 : code;
}

int board_ranks(const Board *board) {
    return board == NULL ? 0 : board->sheet->ranks;
}

// The writer may move on while the text is copied; after two moves it writes into this very half.
static void read_doing_(const Page *from, BoardPage *to) {
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

static void read_page_(const Page *from, BoardPage *page) {
    *page = (BoardPage){.pid = atomic_load(&from->pid),
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

int board_read(const Board *board, int rank, BoardPage *page) {
    if (rank < 0 || rank >= board_ranks(board)) return -1;
    read_page_(&board->sheet->pages[rank], page);
    return 0;
}

void board_read_own(const Board *board, BoardPage *page) {
    if (board != NULL && board->own != NULL)
        read_page_(board->own, page);
    else
        *page = (BoardPage){.stage = -1, .wait_stage = -1};
}

void board_close(Board *board) {
    if (board == NULL) return;
    munmap(board->sheet, board->bytes);
    free(board);
}
