// Categories of device memory. Every allocation names a category, and plans count in the same categories, so that
// planned and allocated bytes can be compared line by line.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

typedef enum MemoryCategory {
    MEMORY_WEIGHTS,    // the layers' weights in the run's precision, and their 8-bit copies with train.fp8
    MEMORY_GRADIENTS,  // gradients of the layers' weights, fp32
    MEMORY_MASTERS,    // fp32 copies of the layers' weights; empty if the precision is fp32
    MEMORY_OPTIMIZER,  // AdamW's two moments of the layers, fp32
    MEMORY_EMBEDDING,  // weights, gradients, masters and moments of embedding, final norm and output matrix
    MEMORY_OWN_SLOTS,  // activation bundles of this stage's microbatches
    MEMORY_LENT_SLOTS, // activation bundles of the paired stage
    MEMORY_KEYS,       // keys, values and their gradients, of microbatches in flight; only with slices
    MEMORY_MESSAGES,   // send and receive buffers between neighbouring stages, buffers for sums over ranks
    MEMORY_HEAD,       // logits and their statistics, on the last stage
    MEMORY_WORKSPACE,  // temporaries of one action, and workspace of the operations
    MEMORY_DATA,       // tokens and losses of one step
    MEMORY_CATEGORIES
} MemoryCategory;

// Bytes by category: predicted by a plan, or held by a backend at the moment.
typedef struct MemoryBytes {
    int64_t bytes[MEMORY_CATEGORIES];
} MemoryBytes;

const char *memory_name(MemoryCategory category);
int64_t memory_total(const MemoryBytes *memory);

typedef struct MemoryText {
    char text[24];
} MemoryText;
MemoryText memory_size_text(int64_t bytes); // "1.20 GiB", "64.1 MiB"
// Lists the categories that are not empty: "weights 1.20 GiB, own slots 3.00 GiB", or "nothing".
void memory_describe(const MemoryBytes *memory, char *text, size_t size);
void memory_note_peak(const MemoryBytes *held, MemoryBytes *peak); // sets *peak to *held if held's total is larger

// Sizes are rounded up to multiples of this, so that every buffer starts on a cache line and a transfer segment.
enum { MEMORY_ALIGN = 256 };
static inline int64_t memory_round(int64_t bytes) { return (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN; }
int64_t memory_pages(int64_t bytes, int64_t page); // rounds up to pages; unchanged if page is 0

// A cursor that lays buffers out one after another. With base NULL it only counts bytes. The same code computes the
// size and assigns the pointers, so the size always matches the layout.
typedef struct Layout {
    char *base;
    int64_t used;
} Layout;

static inline void *layout_take(Layout *layout, int64_t bytes) {
    void *at = layout->base == NULL ? NULL : layout->base + layout->used;
    layout->used += memory_round(bytes);
    return at;
}

__END_DECLS
