// The choices as a file (JSON that ends with its own checksum), and how ranks agree on them: rank 0 alone reads and
// writes, all others send their choices and receive the complete table.
//
// Two runs may start in one folder at the same time, and time the same products. So rank 0 locks the file, reads its
// current choices, adds only what is missing, and its run uses the result.
#include "products.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION_ = 2, KERNEL_BYTES = sizeof((ProductChoice *)NULL)->kernel };

typedef struct Products {
    ProductChoice *list;
    int64_t count;
} Products;

static bool same_product_(const ProductChoice *a, const ProductChoice *b) {
    return memcmp(a->product, b->product, sizeof a->product) == 0;
}

// Adds a choice unless there is one for its product. Returns whether it did.
static bool products_add_(Products *products, const ProductChoice *choice) {
    for (int64_t i = 0; i < products->count; i++)
        if (same_product_(&products->list[i], choice)) return false;
    products->list = xrealloc(products->list, (size_t)(products->count + 1) * sizeof *products->list);
    products->list[products->count++] = *choice;
    return true;
}

// ---------------------------------------------------------------- the file

static void products_write_text_(FILE *file, const Products *products, const char *choices_for) {
    fprintf(file, "{\"format\":\"matrix products\",\"version\":%d,\"for\":", VERSION_);
    json_write_text(file, choices_for);
    fputs(",\n\"products\":[", file);
    for (int64_t i = 0; i < products->count; i++) {
        const ProductChoice *choice = &products->list[i];
        fprintf(file, "%s\n{\"product\":[", i > 0 ? "," : "");
        for (int n = 0; n < PRODUCT_NUMBERS; n++) fprintf(file, "%s%" PRId64, n > 0 ? "," : "", choice->product[n]);
        fputs("],\"kernel\":\"", file);
        for (int n = 0; n < KERNEL_BYTES; n++) fprintf(file, "%02x", choice->kernel[n]);
        fputs("\",\"us\":", file);
        json_write_number(file, 1e6 * choice->seconds);
        fputs(",\"suggested_us\":", file);
        json_write_number(file, 1e6 * choice->suggested);
        fputc('}', file);
    }
    fputs("],\n", file);
}

// Replaces the file. Returns 0, or an errno.
static int products_write_(const Products *products, const char *path, const char *choices_for) {
    char beside[CONFIG_TEXT + 8], *text = NULL;
    size_t length = 0;
    FILE *memory = xmemstream(&text, &length);
    products_write_text_(memory, products, choices_for);
    json_seal(memory, &text, &length);
    xmemstream_close(memory);
    snprintf(beside, sizeof beside, "%s.new", path);
    int fd = file_open_new(beside), code = fd < 0 ? errno : 0;
    if (fd >= 0 && (file_write_all(fd, text, (int64_t)length) != 0 || fsync(fd) != 0)) code = errno;
    if (fd >= 0 && close(fd) != 0 && code == 0) code = errno;
    if (code == 0 && rename(beside, path) != 0) code = errno;
    if (code != 0 && fd >= 0) unlink(beside);
    free(text);
    return code;
}

static int hex_(char digit) {
    return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static bool products_read_choice_(ProductChoice *choice, const JsonValue *from) {
    const JsonValue *numbers = json_find(from, "product"), *us = json_find(from, "us"),
                    *suggested = json_find(from, "suggested_us");
    const char *kernel = json_text(from, "kernel", "");
    memset(choice, 0, sizeof *choice);
    if (numbers == NULL || numbers->type != JSON_ARRAY || numbers->count != PRODUCT_NUMBERS ||
        strlen(kernel) != 2 * KERNEL_BYTES || us == NULL || us->type != JSON_NUMBER || suggested == NULL ||
        suggested->type != JSON_NUMBER)
        return false;
    int64_t *to = choice->product;
    for (const JsonValue *number = numbers->first; number != NULL; number = number->next) *to++ = number->integer;
    for (int i = 0; i < KERNEL_BYTES; i++) {
        int high = hex_(kernel[2 * i]), low = hex_(kernel[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        choice->kernel[i] = (unsigned char)(16 * high + low);
    }
    choice->seconds = 1e-6 * us->number;
    choice->suggested = 1e-6 * suggested->number;
    return choice->product[0] > 0;
}

// Returns NULL, or in one clause why the choices cannot be used.
static const char *products_read_root_(Products *products, const JsonValue *root, const char *choices_for) {
    const JsonValue *list = json_find(root, "products");
    if (strcmp(json_text(root, "format", ""), "matrix products") != 0 || list == NULL || list->type != JSON_ARRAY)
        return "is not a file of matrix products";
    if (json_integer(root, "version", 0) != VERSION_) return "is of another version of this program";
    if (strcmp(json_text(root, "for", ""), choices_for) != 0) return "is of another GPU, driver or cuBLASLt";
    for (const JsonValue *entry = list->first; entry != NULL; entry = entry->next) {
        ProductChoice choice;
        if (!products_read_choice_(&choice, entry)) return "has an entry that is no choice";
        products_add_(products, &choice);
    }
    return NULL;
}

static const char *products_read_text_(Products *products, const char *text, int64_t length, const char *choices_for) {
    Json json = {0};
    if (!json_sealed(text, length)) return "is torn or was changed";
    const char *wrong = json_parse(&json, text, length, "", NULL) != 0
                            ? "is damaged"
                            : products_read_root_(products, json.root, choices_for);
    json_free(&json);
    return wrong;
}

// Reads the file; one that does not exist, or is empty, has no choices. If it cannot be used, there are no choices, and
// `log`, unless it is NULL, says why.
static void products_read_(Products *products, const char *path, const char *choices_for, const Log *log) {
    Error err = {0};
    int64_t length = 0;
    const char *wrong = NULL;
    struct stat status;
    memset(products, 0, sizeof *products);
    if (stat(path, &status) != 0 && errno == ENOENT) return;
    char *text = file_read_whole(path, JSON_MAX_BYTES, &length, &err);
    if (text == NULL && log != NULL) log_line(log, "hardware.products: %.800s; products are timed anew", err.text);
    if (text != NULL && length > 0) wrong = products_read_text_(products, text, length, choices_for);
    free(text);
    if (wrong == NULL) return;
    if (log != NULL) log_line(log, "hardware.products: %s %s; products are timed anew", path, wrong);
    free(products->list);
    memset(products, 0, sizeof *products);
}

// Opens and locks the file, which is created empty, until the descriptor is closed. A run that had the lock before has
// put a new file there. Returns -1 with errno.
static int products_lock_(const char *path) {
    struct stat locked, there;
    for (;;) {
        int fd = file_make_folders(path) != 0 ? -1 : file_open_to_write(path, O_APPEND);
        if (fd < 0) return -1;
        flock(fd, LOCK_EX); // on a file system without locks, runs that start at once may lose choices
        if (fstat(fd, &locked) == 0 && stat(path, &there) == 0 && locked.st_ino == there.st_ino &&
            locked.st_dev == there.st_dev)
            return fd;
        close(fd);
    }
}

// Adds to the file the choices of `timed` that it lacks, and leaves the resulting choices in `kept`.
static void products_keep_(Products *kept, const Products *timed, const char *path, const char *choices_for,
                           const Log *log) {
    int fd = products_lock_(path), code = fd < 0 ? errno : 0;
    products_read_(kept, path, choices_for, NULL);
    int64_t before = kept->count;
    for (int64_t i = 0; i < timed->count; i++) products_add_(kept, &timed->list[i]);
    if (code == 0 && kept->count > before) code = products_write_(kept, path, choices_for);
    if (fd >= 0) close(fd);
    if (code == 0) return;
    kept->count = before;
    log_line(log,
             "hardware.products: %s cannot be written: %s; new products are computed by cuBLASLt's first suggestion: "
             "name another file, or \"\"",
             path, file_why(code));
}

// ---------------------------------------------------------------- the ranks

static bool products_used_(const Config *config, const Backend *be) {
    return be->measure_products != NULL && config->hardware.products[0] != '\0';
}

static int products_rank_(const World *world) { return world == NULL ? 0 : world_rank(world); }

// Gives rank 0's choices to all ranks' backends, and frees them.
static int products_spread_(Products *products, Backend *be, World *world, Error *err) {
    int status = world == NULL ? 0 : world_broadcast(world, 0, &products->count, sizeof products->count, err);
    size_t bytes = (size_t)products->count * sizeof *products->list;
    if (products_rank_(world) > 0) products->list = xmalloc(bytes);
    if (status == 0 && world != NULL) status = world_broadcast(world, 0, products->list, (int64_t)bytes, err);
    if (status == 0) be->use_products(be, products->list, products->count);
    free(products->list);
    memset(products, 0, sizeof *products);
    return status;
}

// Collects the choices of all ranks on rank 0, the lowest rank's for each product. most: of one rank.
static int products_gather_(Products *all, const Products *own, int64_t most, World *world, Error *err) {
    int64_t ranks = world == NULL ? 1 : world_size(world);
    ProductChoice *gathered = xcalloc(products_rank_(world) == 0 ? (size_t)(ranks * most) : 1, sizeof *gathered);
    ProductChoice *mine = xcalloc((size_t)most, sizeof *mine);
    memcpy(mine, own->list, (size_t)own->count * sizeof *mine);
    int status = world == NULL ? (memcpy(gathered, mine, (size_t)most * sizeof *mine), 0)
                               : world_gather(world, 0, gathered, mine, most * (int64_t)sizeof *mine, err);
    for (int64_t i = 0; status == 0 && products_rank_(world) == 0 && i < ranks * most; i++)
        if (gathered[i].product[0] != 0) products_add_(all, &gathered[i]);
    free(gathered);
    free(mine);
    return status;
}

static void products_tell_(const Products *timed, int64_t kept, double seconds, const char *path, const Log *log) {
    double chosen = 0.0, suggested = 0.0;
    for (int64_t i = 0; i < timed->count; i++) {
        chosen += timed->list[i].seconds;
        suggested += timed->list[i].suggested;
    }
    log_detail(
        log,
        "chosen: kernels of %lld matrix products, timed in %.1f ms: together %.1f%% less time than by cuBLASLt's "
        "first suggestions; %s has %lld",
        (long long)timed->count, 1e3 * seconds, suggested > 0.0 ? 100 * (1.0 - chosen / suggested) : 0.0, path,
        (long long)kept);
}

int products_recall(const Config *config, Backend *be, World *world, const Log *log, Error *err) {
    if (!products_used_(config, be)) return 0;
    Products kept = {0};
    Log all = log_of_all(log);
    if (products_rank_(world) == 0) products_read_(&kept, config->hardware.products, be->choices, &all);
    return products_spread_(&kept, be, world, err);
}

int products_choose(const Config *config, Backend *be, World *world, const Log *log, Error *err) {
    if (!products_used_(config, be)) return 0;
    Products own = {0}, timed = {0}, kept = {0};
    const char *path = config->hardware.products;
    Log all = log_of_all(log);
    double began = clock_seconds();
    own.count = be->measure_products(be, &own.list);
    double most = (double)own.count;
    int status = world == NULL ? 0 : world_max(world, &most, 1, err);
    if (status == 0 && most > 0.0) {
        status = products_gather_(&timed, &own, (int64_t)most, world, err);
        if (status == 0 && products_rank_(world) == 0) {
            products_keep_(&kept, &timed, path, be->choices, &all);
            products_tell_(&timed, kept.count, clock_seconds() - began, path, &all);
        }
        if (status == 0) status = products_spread_(&kept, be, world, err);
    }
    free(own.list);
    free(timed.list);
    return status;
}
