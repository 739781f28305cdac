// Our own declarations of the part of the CUDA runtime's interface that src/cuda uses: the virtual GPU needs no CUDA
// toolkit. Names, order of arguments and numbers are those of the CUDA runtime API reference (12 and 13); a struct
// has only the members that are read here. A call that is missing here has to be added with its rules.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CUDART_VERSION 13000
// Of the calls that programs make, not only the library.
#define VIRTUAL_EXPORT __attribute__((visibility("default")))

// clang-format off
#define VIRTUAL_ERRORS(X)                                                                                              \
    X(cudaSuccess, 0, "no error")                                                                                      \
    X(cudaErrorInvalidValue, 1, "invalid argument")                                                                    \
    X(cudaErrorMemoryAllocation, 2, "out of memory")                                                                   \
    X(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version")                 \
    X(cudaErrorDevicesUnavailable, 46, "CUDA-capable device(s) is/are busy or unavailable")                            \
    X(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                                    \
    X(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                                           \
    X(cudaErrorDeviceUninitialized, 201, "invalid device context")                                                     \
    X(cudaErrorMapBufferObjectFailed, 205, "mapping of buffer object failed")                                          \
    X(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device")                \
    X(cudaErrorPeerAccessUnsupported, 217, "peer access is not supported between these two devices")                   \
    X(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                                  \
    X(cudaErrorNotReady, 600, "device not ready")                                                                      \
    X(cudaErrorHostMemoryAlreadyRegistered, 712, "part or all of the requested memory range is already mapped")        \
    X(cudaErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region")              \
    X(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                                       \
    X(cudaErrorNotSupported, 801, "operation not supported")                                                           \
    X(cudaErrorSystemNotReady, 802, "system not yet initialized")
#define VIRTUAL_ENUMERATOR(name, number, text) name = number,

typedef enum cudaError_t { VIRTUAL_ERRORS(VIRTUAL_ENUMERATOR) } cudaError_t;
typedef enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4
} cudaMemcpyKind;
typedef enum cudaDataType_t {
    CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16BF = 14, CUDA_R_8F_E4M3 = 28, CUDA_R_8F_E5M2 = 29
} cudaDataType_t;
typedef enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 } cudaFuncAttribute;
enum {
    cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2, cudaHostRegisterPortable = 1,
    cudaIpcMemLazyEnablePeerAccess = 1, cudaEnableDefault = 0, cudaMemAttachGlobal = 1
};
// clang-format on

typedef struct VirtualStream *cudaStream_t;
typedef struct VirtualEvent *cudaEvent_t;
typedef struct cudaUUID_t {
    char bytes[16];
} cudaUUID_t;
typedef struct cudaIpcMemHandle_t {
    char reserved[64];
} cudaIpcMemHandle_t;

typedef struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    int major, minor, multiProcessorCount, pciBusID, pciDeviceID, pciDomainID;
    size_t sharedMemPerBlockOptin;
} cudaDeviceProp;

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest);
cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer);
enum cudaDeviceP2PAttr { cudaDevP2PAttrNativeAtomicSupported = 3 };
cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int device, int peer);
enum cudaDeviceAttr { cudaDevAttrCanFlushRemoteWrites = 98 };
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device);
VIRTUAL_EXPORT cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaMemGetInfo(size_t *left, size_t *total);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorString(cudaError_t error);

VIRTUAL_EXPORT cudaError_t cudaMallocManaged(void **memory, size_t bytes, unsigned flags);
VIRTUAL_EXPORT cudaError_t cudaFree(void *memory);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags);
cudaError_t cudaHostUnregister(void *memory);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream);

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);

cudaError_t cudaEventCreate(cudaEvent_t *event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end);

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory);
cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t cudaIpcCloseMemHandle(void *memory);

// Returns cuStreamWriteValue32 or cuStreamWaitValue32 of the driver's interface in *function.
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags, void *status);

// In the runtime's own header both are also templates, and src/cuda passes pointers of other types.
cudaError_t virtual_malloc(void **memory, size_t bytes);
cudaError_t virtual_malloc_host(void **memory, size_t bytes);

#ifdef __cplusplus
}
template <typename T> static inline cudaError_t cudaMalloc(T **memory, size_t bytes) {
    return virtual_malloc((void **)memory, bytes);
}
template <typename T> static inline cudaError_t cudaMallocHost(T **memory, size_t bytes) {
    return virtual_malloc_host((void **)memory, bytes);
}
#endif
