// The handshake of lending (lending.h). The lender fills the memory, at most a MiB of it, with words that follow from a
// random token, and sends an offer. The borrower maps the memory, checks the words and overwrites them with their
// complements, which the lender checks in turn: on some machines with an IOMMU, GPUs access each other's memory but
// damage what they copy. A copy to the device may return before its bytes arrive, and a message through the host could
// overtake it, so each side synchronizes its device between writing and sending the message.
#include "lending.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { PROOF_BYTES = 1 << 20 };

typedef struct Offer {
    uint64_t token;
    int64_t bytes; // 0: nothing can be lent
    char host[40]; // boot id of the lender's system; only a process on the same system can map the memory
    Loan loan;
    char why[160]; // why nothing can be lent, as a clause
} Offer;

static void host_identity_(char *text, size_t size) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    memset(text, 0, size);
    if (file == NULL) return;
    if (fgets(text, (int)size, file) == NULL) text[0] = '\0';
    fclose(file);
}

static int64_t proof_bytes_(int64_t bytes) { return bytes < PROOF_BYTES ? bytes / 8 * 8 : PROOF_BYTES; }

static uint64_t *proof_(uint64_t token, int64_t bytes) {
    uint64_t *words = xmalloc((size_t)bytes);
    for (int64_t i = 0; i < bytes / 8; i++) words[i] = token ^ (uint64_t)i * 0x9e3779b97f4a7c15u;
    return words;
}

// Returns whether the memory has the words of this token.
static bool proves_(Backend *be, const void *from, int64_t bytes, uint64_t token) {
    int64_t size = proof_bytes_(bytes);
    uint64_t *words = proof_(token, size), *found = xcalloc(1, (size_t)size);
    be->download(be, found, from, size);
    bool same = memcmp(words, found, (size_t)size) == 0;
    free_all(words, found);
    return same;
}

static int write_proof_(Backend *be, void *to, int64_t bytes, uint64_t token, Error *err) {
    int64_t size = proof_bytes_(bytes);
    uint64_t *words = proof_(token, size);
    be->upload(be, to, words, size);
    free(words);
    return be->synchronize(be, err);
}

int lending_lend(Backend *be, void *memory, int64_t bytes, Comm *control, int peer, bool *lent, Error *err) {
    Offer offer;
    Error unable = {0};
    int64_t mapped = 0, confirmed = 0;
    *lent = false;
    memset(&offer, 0, sizeof offer);
    if (memory != NULL && be->lend != NULL && be->lend(be, memory, bytes, &offer.loan, &unable) == 0) {
        offer.bytes = bytes;
        offer.token = 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)memory ^ (uint64_t)(clock_seconds() * 1e9);
        host_identity_(offer.host, sizeof offer.host);
        if (write_proof_(be, memory, bytes, offer.token, err) != 0) return -1;
    }
    snprintf(offer.why, sizeof offer.why, "%.159s", unable.text);
    if (comm_send_now(control, peer, &offer, sizeof offer, err) != 0) return -1;
    if (comm_receive_now(control, peer, &mapped, sizeof mapped, err) != 0) return -1;
    if (mapped) confirmed = proves_(be, memory, bytes, ~offer.token);
    if (offer.bytes > 0) be->zero(be, memory, proof_bytes_(bytes));
    if (be->synchronize(be, err) != 0) return -1;
    *lent = confirmed != 0;
    return comm_send_now(control, peer, &confirmed, sizeof confirmed, err);
}

int lending_borrow(Backend *be, int64_t bytes, Comm *control, int peer, void **memory, char why[256], Error *err) {
    Offer offer;
    char host[sizeof offer.host];
    Error unable = {0};
    const char *reason = NULL;
    *memory = NULL;
    if (comm_receive_now(control, peer, &offer, sizeof offer, err) != 0) return -1;

    // Maps the memory, checks the words in it and writes their complements.
    host_identity_(host, sizeof host);
    if (offer.why[0] != '\0') reason = offer.why;
    else if (offer.bytes == 0 || offer.host[0] == '\0' || be->borrow == NULL)
        reason = "the peer's memory cannot be lent";
    else if (memcmp(host, offer.host, sizeof host) != 0) reason = "the peer is on another host";
    else if (offer.bytes != bytes) reason = "the two ranks expect different sizes";
    if (reason == NULL && (*memory = be->borrow(be, &offer.loan, bytes, &unable)) == NULL) reason = unable.text;
    if (reason == NULL && !proves_(be, *memory, bytes, offer.token)) {
        be->give_back(be, *memory, bytes);
        *memory = NULL;
        reason = "a copy from the peer's memory does not contain the data that the peer wrote";
    }
    snprintf(why, 256, "%.255s", reason == NULL ? "" : reason);
    if (reason == NULL && write_proof_(be, *memory, bytes, ~offer.token, err) != 0) return -1;

    int64_t mapped = *memory != NULL, confirmed = 0;
    if (comm_send_now(control, peer, &mapped, sizeof mapped, err) != 0) return -1;
    if (comm_receive_now(control, peer, &confirmed, sizeof confirmed, err) != 0) return -1;
    if (confirmed || !mapped) return 0;
    be->give_back(be, *memory, bytes);
    *memory = NULL;
    snprintf(why, 256, "data written to the peer's memory does not arrive");
    return 0;
}
