// GPU memory of another process on the same host, mapped by CUDA IPC, and host memory pinned for the copy engines.
#include "base/alloc.h"
#include "internal.h"

#include <string.h>

typedef struct IpcHandle {
    cudaIpcMemHandle_t memory;
    cudaUUID_t gpu; // UUID of the GPU, because device numbers differ between processes
} IpcHandle;

static_assert(sizeof(IpcHandle) <= sizeof(Loan), "a handle has to fit into a loan");

static cudaError_t uuid_(int device, cudaUUID_t *uuid) {
    cudaDeviceProp properties;
    cudaError_t status = cudaGetDeviceProperties(&properties, device);
    if (status == cudaSuccess) *uuid = properties.uuid;
    return status;
}

void cuda_take_back(CudaBackend *cuda, const void *memory) {
    int kept = 0;
    for (int i = 0; i < cuda->lent_count; i++)
        if (cuda->lent[i] != memory) cuda->lent[kept++] = cuda->lent[i];
    cuda->lent_count = kept;
}

int cuda_lend(Backend *be, const void *memory, int64_t bytes, Loan *loan, Error *err) {
    (void)bytes;
    IpcHandle handle;
    memset(&handle, 0, sizeof handle);
    memset(loan, 0, sizeof *loan);
    cudaError_t status = cudaIpcGetMemHandle(&handle.memory, const_cast<void *>(memory));
    if (status == cudaSuccess) status = uuid_(cuda_self(be)->device, &handle.gpu);
    if (status != cudaSuccess) {
        cudaGetLastError();
        return error_set(err, EXIT_FAILED, "CUDA cannot share the memory of its GPU: %s", cudaGetErrorString(status));
    }
    memcpy(loan, &handle, sizeof handle);
    CudaBackend *cuda = cuda_self(be);
    cuda_take_back(cuda, memory); // one entry for each piece of memory, however often it is lent
    cuda->lent = (const void **)xrealloc(cuda->lent, (size_t)(cuda->lent_count + 1) * sizeof *cuda->lent);
    cuda->lent[cuda->lent_count++] = memory;
    return 0;
}

// Returns the number of the lender's GPU in this process, or -1 if it is not visible.
static int find_gpu_(const cudaUUID_t *gpu) {
    int count = 0;
    cudaGetDeviceCount(&count);
    for (int device = 0; device < count; device++) {
        cudaUUID_t uuid;
        if (uuid_(device, &uuid) == cudaSuccess && memcmp(&uuid, gpu, sizeof uuid) == 0) return device;
    }
    return -1;
}

// Memory of a GPU that is not visible to this process can be mapped (NCCL's transport/p2p.cc: since CUDA 10.1), but
// CUDA cannot say beforehand whether that works. The handshake of lending.c tests every mapping.
void *cuda_borrow(Backend *be, const Loan *loan, int64_t bytes, Error *err) {
    (void)bytes;
    int mine = cuda_self(be)->device, reachable = 1;
    IpcHandle handle;
    void *memory = NULL;
    memcpy(&handle, loan, sizeof handle);
    int theirs = find_gpu_(&handle.gpu);
    if (theirs < 0)
        cuda_self(be)->unordered = "its GPU is not visible here, so NVLink to it is uncertain; make all GPUs of a node "
                                   "visible to each of its tasks";
    if (theirs >= 0 && theirs != mine) {
        // GPUs have atomic operations in each other's memory over NVLink only (CUDA C++ programming guide).
        int atomics = 1;
        cudaDeviceCanAccessPeer(&reachable, mine, theirs);
        cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, mine, theirs);
        if (atomics == 0) cuda_self(be)->unordered = "its GPU has no NVLink to this one";
    }
    cudaError_t status = reachable ? cudaIpcOpenMemHandle(&memory, handle.memory, cudaIpcMemLazyEnablePeerAccess)
                                   : cudaErrorPeerAccessUnsupported;
    cudaGetLastError();
    if (status == cudaSuccess && memory != NULL) return memory;
    error_set(err, EXIT_FAILED, "CUDA cannot map the peer's GPU memory: %s%s", cudaGetErrorString(status),
              theirs < 0 ? "; make all GPUs of a node visible to each of its tasks" : "");
    return NULL;
}

void cuda_give_back(Backend *be, void *memory, int64_t bytes) {
    (void)be, (void)bytes;
    if (memory != NULL) cudaIpcCloseMemHandle(memory);
}

int cuda_pin(Backend *be, void *host, int64_t bytes, Error *err) {
    (void)be;
    cudaError_t status = cudaHostRegister(host, (size_t)bytes, cudaHostRegisterPortable);
    if (status == cudaSuccess) return 0;
    cudaGetLastError();
    return error_set(err, EXIT_FAILED,
                     "cannot pin %lld bytes of host memory for evicted bundles: %s; raise ulimit -l, or run fewer "
                     "ranks per host",
                     (long long)bytes, cudaGetErrorString(status));
}

void cuda_unpin(Backend *be, void *host) {
    (void)be;
    cudaHostUnregister(host);
}
