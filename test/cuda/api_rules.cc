// Small rules of the CUDA runtime and of NCCL that src/cuda relies on and that the virtual GPU (test/virtual) imitates.
// Each rule is tested and confirmed or refuted: with the real libraries on a machine with a GPU
// (studies/first_gpu_day.sh), and with the virtual ones (test/virtual/test_api_rules.py), to show that both agree.
//
// Two processes, since mapped memory and messages take two; they are forked before CUDA starts and talk through pipes.
// Every line is "confirmed RULE", "refuted RULE: why" or "skipped RULE: why". Exit code 1 if a rule was refuted.
#include <cuda_runtime.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <poll.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

int self, gpus, refuted; // this process's rank
int to_other, from_other;

enum { BIG = 32 << 20, SMALL = 1 << 16 };

void say(const char *rule, const std::string &why, const char *word = nullptr) {
    if (word == nullptr) word = why.empty() ? "confirmed" : "refuted";
    refuted += strcmp(word, "refuted") == 0;
    printf("%s %s%s%s\n", word, rule, why.empty() ? "" : ": ", why.c_str());
    fflush(stdout);
}

std::string got(const char *what, cudaError_t error) {
    return std::string(what) + " answers " + cudaGetErrorString(error);
}

// The result of a test: why the rule does not hold; empty: it holds.
typedef std::string Reason;

struct Stream {
    cudaStream_t stream = nullptr;
    char *memory = nullptr;
    Stream() {
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaMalloc((void **)&memory, BIG);
    }
    ~Stream() {
        cudaStreamSynchronize(stream);
        cudaStreamDestroy(stream);
        cudaFree(memory);
        cudaGetLastError();
    }
    void busy() const { // about a millisecond of work on a fast GPU
        for (int i = 0; i < 100; i++) cudaMemsetAsync(memory, i, BIG, stream);
    }
};

// CUDA 13.0 leaves no error. The virtual GPU leaves one, as earlier releases may.
Reason query_leaves_its_error_or_none() {
    Stream s;
    cudaEvent_t event;
    cudaEventCreate(&event);
    s.busy();
    cudaEventRecord(event, s.stream);
    cudaError_t asked = cudaEventQuery(event), left = cudaGetLastError(), after = cudaGetLastError();
    cudaStreamSynchronize(s.stream);
    cudaEventDestroy(event);
    if (asked != cudaErrorNotReady) return got("a query of work that is under way", asked);
    if (left != cudaErrorNotReady && left != cudaSuccess) return got("cudaGetLastError after it", left);
    return after == cudaSuccess ? "" : got("a second cudaGetLastError", after);
}

Reason an_event_that_was_never_recorded_is_done() {
    Stream s;
    cudaEvent_t event;
    cudaEventCreate(&event);
    cudaError_t asked = cudaEventQuery(event), waited = cudaStreamWaitEvent(s.stream, event, 0);
    cudaEventDestroy(event);
    if (asked != cudaSuccess) return got("cudaEventQuery", asked);
    return waited == cudaSuccess ? "" : got("cudaStreamWaitEvent", waited);
}

Reason time_needs_events_that_were_recorded() {
    Stream s;
    cudaEvent_t first, second;
    float ms = 0;
    cudaEventCreate(&first), cudaEventCreate(&second);
    cudaError_t never = cudaEventElapsedTime(&ms, first, second);
    cudaGetLastError();
    cudaEventRecord(first, s.stream), s.busy(), cudaEventRecord(second, s.stream);
    cudaError_t pending = cudaEventElapsedTime(&ms, first, second);
    cudaGetLastError();
    cudaStreamSynchronize(s.stream);
    cudaError_t done = cudaEventElapsedTime(&ms, first, second);
    cudaEventDestroy(first), cudaEventDestroy(second);
    if (never != cudaErrorInvalidResourceHandle) return got("cudaEventElapsedTime of events never recorded", never);
    if (pending != cudaErrorNotReady) return got("cudaEventElapsedTime of work under way", pending);
    return done == cudaSuccess ? "" : got("cudaEventElapsedTime", done);
}

Reason an_upload_from_ordinary_memory_has_left_it_at_return() {
    Stream s;
    std::vector<char> bytes(SMALL, 7), back(SMALL, 0);
    s.busy();
    cudaMemcpyAsync(s.memory, bytes.data(), SMALL, cudaMemcpyHostToDevice, s.stream);
    memset(bytes.data(), 9, SMALL);
    cudaStreamSynchronize(s.stream);
    cudaMemcpyAsync(back.data(), s.memory, SMALL, cudaMemcpyDeviceToHost, s.stream);
    cudaStreamSynchronize(s.stream);
    return back[SMALL - 1] == 7 ? "" : "the device has bytes that were written after the call";
}

Reason a_download_to_ordinary_memory_is_there_at_return() {
    Stream s;
    std::vector<char> back(SMALL, 0);
    s.busy();
    cudaMemsetAsync(s.memory, 5, SMALL, s.stream);
    cudaMemcpyAsync(back.data(), s.memory, SMALL, cudaMemcpyDefault, s.stream);
    return back[0] == 5 && back[SMALL - 1] == 5 ? "" : "the bytes are not there when the call returns";
}

Reason freeing_memory_waits_for_the_device() {
    Stream s;
    void *other = nullptr;
    cudaEvent_t event;
    cudaMalloc(&other, SMALL);
    cudaEventCreate(&event);
    s.busy();
    cudaEventRecord(event, s.stream);
    cudaFree(other);
    cudaError_t asked = cudaEventQuery(event);
    cudaGetLastError();
    cudaStreamSynchronize(s.stream);
    cudaEventDestroy(event);
    return asked == cudaSuccess ? "" : got("a query of work queued before cudaFree", asked);
}

Reason no_memory_left_is_an_error_that_goes() {
    void *memory = nullptr;
    size_t left = 0, total = 0;
    cudaMemGetInfo(&left, &total);
    cudaError_t refused = cudaMalloc(&memory, total * 2), last = cudaGetLastError();
    cudaError_t next = cudaMalloc(&memory, SMALL);
    cudaFree(memory);
    if (refused != cudaErrorMemoryAllocation) return got("cudaMalloc of twice the memory", refused);
    if (last != cudaErrorMemoryAllocation) return got("cudaGetLastError after it", last);
    return next == cudaSuccess ? "" : got("the next cudaMalloc", next);
}

Reason a_gpu_that_is_not_there_is_refused() {
    cudaError_t chosen = cudaSetDevice(999);
    cudaGetLastError();
    return chosen == cudaErrorInvalidDevice ? "" : got("cudaSetDevice(999)", chosen);
}

// ---------------------------------------------------------------- two processes

bool put(const void *data, size_t bytes) { return write(to_other, data, bytes) == (ssize_t)bytes; }

bool take(void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read(from_other, (char *)data + done, bytes - done);
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

void meet() {
    char word = 'm';
    if (!put(&word, 1) || !take(&word, 1)) exit(1);
}

enum { BYTES = 2 << 20 };

void last_byte(const Stream &s, void *memory, char *byte) {
    cudaMemcpyAsync(byte, (char *)memory + BYTES - 1, 1, cudaMemcpyDeviceToHost, s.stream);
    cudaStreamSynchronize(s.stream);
}

// Process 0 lends memory; process 1 maps, reads and writes it; process 0 checks the write. Each returns its own result.
Reason mapped_memory_is_the_lenders() {
    Stream s;
    cudaIpcMemHandle_t handle;
    char byte = 0;
    void *memory = nullptr, *own = nullptr;
    Reason reason;
    if (self == 0) {
        cudaMalloc(&memory, BYTES);
        cudaMemsetAsync(memory, 21, BYTES, s.stream);
        cudaStreamSynchronize(s.stream);
        cudaError_t exported = cudaIpcGetMemHandle(&handle, memory);
        put(&handle, sizeof handle), meet();
        last_byte(s, memory, &byte);
        cudaError_t opened = cudaIpcOpenMemHandle(&own, handle, cudaIpcMemLazyEnablePeerAccess);
        cudaGetLastError();
        if (exported != cudaSuccess) reason = got("cudaIpcGetMemHandle", exported);
        if (reason.empty() && byte != 22) reason = "what the other process wrote is not there";
        if (reason.empty() && opened == cudaSuccess) reason = "a process can open its own handle";
        cudaFree(memory);
        return reason;
    }
    take(&handle, sizeof handle);
    cudaError_t opened = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
    if (opened == cudaSuccess) last_byte(s, memory, &byte);
    if (opened != cudaSuccess) reason = got("cudaIpcOpenMemHandle", opened);
    if (reason.empty() && byte != 21) reason = "what the lender wrote is not there";
    if (opened == cudaSuccess) {
        cudaMemsetAsync(memory, 22, BYTES, s.stream);
        cudaStreamSynchronize(s.stream);
        cudaIpcCloseMemHandle(memory);
    }
    meet();
    return reason;
}

// Process 0's first ncclSend returns only once process 1 calls ncclRecv; its second one returns before that.
Reason only_the_first_message_keeps_the_host(ncclComm_t comm, const Stream &s) {
    Reason reason;
    for (int message = 0; message < 2; message++) {
        char said = 0;
        if (self == 0) {
            ncclSend(s.memory, 1, ncclInt8, 1, comm, s.stream);
            put(&said, 1);
        } else {
            // The first send should block, so the wait is short. The second should return, so the wait may be long.
            pollfd end = {from_other, POLLIN, 0};
            bool returned = poll(&end, 1, message == 0 ? 1000 : 60000) > 0;
            if (message == 0 && returned) reason = "the first ncclSend returns before the other side has called";
            if (message == 1 && !returned) reason = "a later ncclSend waits for the other side's call, too";
            ncclRecv(s.memory, 1, ncclInt8, 0, comm, s.stream);
            take(&said, 1);
        }
        cudaStreamSynchronize(s.stream);
    }
    meet();
    return reason;
}

// Process 0 destroys the communicator; process 1 looks for a second whether that call returns before its own.
Reason destroying_waits_for_the_other_rank(ncclComm_t comm) {
    char said = 0;
    pollfd end = {from_other, POLLIN, 0};
    bool returned = self == 1 && poll(&end, 1, 1000) > 0;
    ncclCommDestroy(comm);
    if (self == 0) put(&said, 1);
    if (self == 1) take(&said, 1);
    return returned ? "it returns before the other rank has called" : "";
}

ncclResult_t make_communicator(ncclComm_t *comm) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (self == 0) ncclGetUniqueId(&id), put(&id, sizeof id);
    if (self == 1) take(&id, sizeof id);
    return ncclCommInitRankConfig(comm, 2, id, self, &config);
}

void try_messages() {
    const char *rule = "only the first message between two ranks keeps the host until the other side has called";
    Stream s;
    ncclComm_t comm = nullptr;
    ncclResult_t made = make_communicator(&comm);
    if (gpus < 2) {
        if (self == 0) say(rule, "it takes two GPUs", "skipped");
        if (self == 0) say("a GPU is in a communicator once", made == ncclSuccess ? "two ranks of one were taken" : "");
        return;
    }
    if (made != ncclSuccess) {
        say("two ranks make a communicator", ncclGetErrorString(made));
        return;
    }
    cudaMemsetAsync(s.memory, 0, 1, s.stream);
    Reason reason = only_the_first_message_keeps_the_host(comm, s);
    if (self == 1) say(rule, reason);
    reason = destroying_waits_for_the_other_rank(comm);
    if (self == 1) say("ncclCommDestroy waits for the other ranks of the node", reason);
}

void run_rank() {
    cudaSetDevice(gpus > 1 ? self : 0);
    if (self == 0) {
        say("a query of an event under way leaves cudaErrorNotReady or nothing as the last error",
            query_leaves_its_error_or_none());
        say("an event that was never recorded counts as done", an_event_that_was_never_recorded_is_done());
        say("elapsed time needs events that were recorded and passed", time_needs_events_that_were_recorded());
        say("an upload has left ordinary memory at return", an_upload_from_ordinary_memory_has_left_it_at_return());
        say("a download is in ordinary memory at return", a_download_to_ordinary_memory_is_there_at_return());
        say("cudaFree waits for the device", freeing_memory_waits_for_the_device());
        say("cudaErrorMemoryAllocation goes once it was asked for", no_memory_left_is_an_error_that_goes());
        say("a GPU that is not there is refused", a_gpu_that_is_not_there_is_refused());
    }
    meet();
    Reason mapped = mapped_memory_is_the_lenders();
    say(self == 0 ? "mapped memory is the lender's, who cannot map it too" : "a mapping reads what the lender wrote",
        mapped);
    meet();
    try_messages();
}

int count_gpus() { // in a process of its own: CUDA does not survive a fork
    pid_t child = fork();
    if (child == 0) {
        int count = 0;
        _exit(cudaGetDeviceCount(&count) == cudaSuccess ? (count < 100 ? count : 100) : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

} // namespace

int main() {
    int down[2], up[2], status = 0;
    gpus = count_gpus();
    if (gpus == 0) {
        printf("skipped every rule: there is no GPU here\n");
        return 0;
    }
    if (pipe(down) != 0 || pipe(up) != 0) return 1;
    setenv("VIRTUAL_JOB", ("api_rules_" + std::to_string(getpid())).c_str(), 1);
    setenv("PMI_SIZE", "2", 1);
    pid_t child = fork();
    self = child == 0;
    setenv("PMI_RANK", self == 0 ? "0" : "1", 1);
    to_other = self == 0 ? down[1] : up[1];
    from_other = self == 0 ? up[0] : down[0];
    run_rank();
    fflush(stdout);
    if (self == 1) _exit(refuted > 0);
    waitpid(child, &status, 0);
    return refuted > 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}
