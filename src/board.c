#include "board.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
    _Atomic uint32_t turn; // the action is action[turn % 2]
    char action[2][96];
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
};

static size_t sheet_bytes_(int ranks) {
    return sizeof(Sheet) + (size_t)ranks * sizeof(Page);
}

static Board *map_(int file, size_t bytes) {
    Board *board = calloc(1, sizeof *board);
    if (board == NULL) return NULL;
    void *sheet = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (sheet == MAP_FAILED) {
        free(board);
        return NULL;
    }
    board->sheet = sheet;
    board->bytes = bytes;
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

static int launched_rank_(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL) return atoi(getenv(names[i]));
    return -1;
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
    if (rank < 0) rank = launched_rank_();
    if (rank < 0 || rank >= board->sheet->ranks || sheet_bytes_(board->sheet->ranks) > board->bytes) {
        board_close(board);
        return NULL;
    }
    board->own = &board->sheet->pages[rank];
    atomic_store(&board->own->pid, (int32_t)getpid());
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

void board_set_action(Board *board, const char *action) {
    Page *page = own_(board);
    if (page == NULL) return;
    uint32_t next = atomic_load_explicit(&page->turn, memory_order_relaxed) + 1;
    copy_text_(page->action[next % 2], sizeof page->action[0], action);
    atomic_store_explicit(&page->turn, next, memory_order_release);
}

bool board_report(Board *board, int code, const char *text) {
    Page *page = own_(board);
    if (page == NULL) return false;
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
static void read_action_(const Page *page, char *to, size_t size) {
    uint32_t before, after;
    do {
        before = atomic_load_explicit(&page->turn, memory_order_acquire);
        copy_text_(to, size, page->action[before % 2]);
        atomic_thread_fence(memory_order_acquire);
        after = atomic_load_explicit(&page->turn, memory_order_relaxed);
    } while (before != after);
}

int board_read(const Board *board, int rank, BoardPage *page) {
    if (rank < 0 || rank >= board_ranks(board)) return -1;
    const Page *from = &board->sheet->pages[rank];
    *page = (BoardPage){.pid = atomic_load(&from->pid),
                        .stage = atomic_load(&from->stage) - 1,
                        .ready = atomic_load(&from->ready) != 0,
                        .reported = atomic_load(&from->reported)};
    read_action_(from, page->action, sizeof page->action);
    if (page->reported == 0) return 0;
    page->code = from->code;
    copy_text_(page->text, sizeof page->text, from->text);
    return 0;
}

void board_close(Board *board) {
    if (board == NULL) return;
    munmap(board->sheet, board->bytes);
    free(board);
}
