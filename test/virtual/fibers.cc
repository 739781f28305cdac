// A second opinion about races, by ThreadSanitizer: each stream is one of its fibers, entered without synchronization,
// and what orders contexts here (a call, an event, a synchronize) is a release and an acquire there. The accesses are
// those that shadow.cc sees; its own clocks are off meanwhile. ThreadSanitizer sees one process: what another one does
// to memory that it maps here is left to shadow.cc.
//
// The programs of `make virtual-tsan` are linked with -fsanitize=thread, and so have its runtime, whose functions this
// finds by name (sanitizer/tsan_interface.h). In any other program nothing here does anything.
#include "virtual.h"

#include <dlfcn.h>

namespace virtual_gpu {

namespace {

template <typename F> F found(const char *name) { return (F)dlsym(RTLD_DEFAULT, name); }

typedef void (*Annotate)(const char *file, int line);
typedef void (*Range)(const void *memory, size_t bytes);

struct Tsan {
    void *(*create)(unsigned) = found<void *(*)(unsigned)>("__tsan_create_fiber");
    void *(*current)() = found<void *(*)()>("__tsan_get_current_fiber");
    void (*enter)(void *, unsigned) = found<void (*)(void *, unsigned)>("__tsan_switch_to_fiber");
    void (*acquire)(void *) = found<void (*)(void *)>("__tsan_acquire");
    void (*release)(void *) = found<void (*)(void *)>("__tsan_release");
    Range read = found<Range>("__tsan_read_range"), write = found<Range>("__tsan_write_range");
    Annotate ignore[3] = {found<Annotate>("AnnotateIgnoreSyncBegin"), found<Annotate>("AnnotateIgnoreReadsBegin"),
                          found<Annotate>("AnnotateIgnoreWritesBegin")};
    Annotate heed[3] = {found<Annotate>("AnnotateIgnoreSyncEnd"), found<Annotate>("AnnotateIgnoreReadsEnd"),
                        found<Annotate>("AnnotateIgnoreWritesEnd")};
};

const Tsan &tsan() {
    static const Tsan made;
    return made;
}

enum { NO_SYNC = 1 }; // __tsan_switch_to_fiber_no_sync

thread_local bool in_fiber = false;

void ignore_all() {
    for (Annotate begin : tsan().ignore) begin(__FILE__, __LINE__);
}

void heed_all() {
    for (Annotate end : tsan().heed) end(__FILE__, __LINE__);
}

// In a fiber, locks order nothing and accesses to the virtual GPU's own memory are ignored: only the calls here count.
struct Said {
    Said() {
        if (in_fiber) heed_all();
    }
    ~Said() {
        if (in_fiber) ignore_all();
    }
};

} // namespace

bool tsan_judges() { return tsan().create != nullptr; }

void fiber_run(void **fiber, void *from, void *to, const std::function<void()> &step) {
    const Tsan &t = tsan();
    if (!tsan_judges()) return step();
    void *scheduler = t.current();
    if (*fiber == nullptr) *fiber = t.create(0);
    t.enter(*fiber, NO_SYNC);
    t.acquire(from);
    ignore_all();
    in_fiber = true;
    step();
    in_fiber = false;
    heed_all();
    t.release(to);
    t.enter(scheduler, NO_SYNC);
}

void edge_release(void *token) {
    if (!tsan_judges()) return;
    Said said;
    tsan().release(token);
}

void edge_acquire(void *token) {
    if (!tsan_judges()) return;
    Said said;
    tsan().acquire(token);
}

void tsan_touch(const void *memory, int64_t bytes, bool writes) {
    Said said;
    (writes ? tsan().write : tsan().read)(memory, (size_t)bytes);
}

} // namespace virtual_gpu
