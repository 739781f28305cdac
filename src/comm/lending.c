// The handshake of lending (lending.h). The lender writes a random token into the memory and sends an offer. The
// borrower maps the memory, checks the token and overwrites it with its complement, which the lender checks in turn. A
// copy to the device may return before its bytes arrive, and a message through the host could overtake it, so each side
// synchronizes its device between writing a token and sending the message.
#include "lending.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

typedef struct Offer {
    uint64_t token;
    int64_t bytes; // 0: nothing can be lent
    char host[40]; // boot id of the lender's system; only a process on the same system can map the memory
    Loan loan;
} Offer;

static void host_identity_(char *text, size_t size) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    memset(text, 0, size);
    if (file == NULL) return;
    if (fgets(text, (int)size, file) == NULL) text[0] = '\0';
    fclose(file);
}

static uint64_t read_token_(Backend *be, const void *from) {
    uint64_t token = 0;
    be->download(be, &token, from, sizeof token);
    return token;
}

static int write_token_(Backend *be, void *to, uint64_t token, Error *err) {
    be->upload(be, to, &token, sizeof token);
    return be->synchronize(be, err);
}

// Fills in the offer and writes its token to `memory`. offer->bytes 0: nothing to lend. -1 with err: the device failed.
static int make_offer_(Offer *offer, Backend *be, void *memory, int64_t bytes, Error *err) {
    Error unable = {0};
    memset(offer, 0, sizeof *offer);
    if (memory == NULL || be->lend == NULL || be->lend(be, memory, bytes, &offer->loan, &unable) != 0) return 0;
    offer->bytes = bytes;
    offer->token = 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)memory ^ (uint64_t)(clock_seconds() * 1e9);
    host_identity_(offer->host, sizeof offer->host);
    return write_token_(be, memory, offer->token, err);
}

int lending_lend(Backend *be, void *memory, int64_t bytes, Comm *control, int peer, bool *lent, Error *err) {
    Offer offer;
    int64_t mapped = 0, confirmed = 0;
    *lent = false;
    if (make_offer_(&offer, be, memory, bytes, err) != 0) return -1;
    if (comm_send_now(control, peer, &offer, sizeof offer, err) != 0) return -1;
    if (comm_receive_now(control, peer, &mapped, sizeof mapped, err) != 0) return -1;
    if (mapped) confirmed = read_token_(be, memory) == ~offer.token;
    if (offer.bytes > 0 && write_token_(be, memory, 0, err) != 0) return -1;
    *lent = confirmed != 0;
    return comm_send_now(control, peer, &confirmed, sizeof confirmed, err);
}

// Returns why the offer cannot be used here, or NULL.
static const char *unreachable_(const Backend *be, const Offer *offer) {
    char host[sizeof offer->host];
    host_identity_(host, sizeof host);
    if (offer->bytes == 0 || offer->host[0] == '\0' || be->borrow == NULL) return "the peer's memory cannot be lent";
    return memcmp(host, offer->host, sizeof host) == 0 ? NULL : "the peer is on another host";
}

// Maps the lender's memory, sets *memory to its address here, and writes the complement of the offer's token there. If
// the memory cannot be mapped, sets *memory to NULL and `why` to the reason. Returns -1 with err if the device fails.
static int map_(Backend *be, const Offer *offer, int64_t bytes, void **memory, char why[256], Error *err) {
    Error unable = {0};
    const char *reason = unreachable_(be, offer);
    *memory = NULL;
    if (reason == NULL && offer->bytes != bytes) reason = "the two ranks expect different sizes";
    if (reason == NULL && (*memory = be->borrow(be, &offer->loan, bytes, &unable)) == NULL) reason = unable.text;
    if (reason == NULL && read_token_(be, *memory) != offer->token) {
        be->give_back(be, *memory, bytes);
        *memory = NULL;
        reason = "the mapping does not show the peer's memory";
    }
    snprintf(why, 256, "%.255s", reason == NULL ? "" : reason);
    return reason == NULL ? write_token_(be, *memory, ~offer->token, err) : 0;
}

int lending_borrow(Backend *be, int64_t bytes, Comm *control, int peer, void **memory, char why[256], Error *err) {
    Offer offer;
    if (comm_receive_now(control, peer, &offer, sizeof offer, err) != 0) return -1;
    if (map_(be, &offer, bytes, memory, why, err) != 0) return -1;
    int64_t mapped = *memory != NULL, confirmed = 0;
    if (comm_send_now(control, peer, &mapped, sizeof mapped, err) != 0) return -1;
    if (comm_receive_now(control, peer, &confirmed, sizeof confirmed, err) != 0) return -1;
    if (confirmed || !mapped) return 0;
    be->give_back(be, *memory, bytes);
    *memory = NULL;
    snprintf(why, 256, "data written to the peer's memory do not arrive");
    return 0;
}
