// Asks cuDNN, without a device or a driver, for plans of the graphs that src/cuda/attention_cudnn.cpp builds:
// `ask_cudnn 90` reads lines "batch seq heads kv_heads head_dim value_dim on|off|auto" (the last: a deterministic
// backward). It answers with "workspace planned", where planned is attention_flash_workspace, or "none: why", and with
// "!" before that if attention_without_flash does not agree. `ask_cudnn 90 full` is for attention that is not causal,
// `ask_cudnn 90 range` for the last of four slices. cuDNN's frontend accepts a device description. Its CUDA calls are
// answered below and by a stub of libcuda.so.1 that test_cudnn.py makes.
#include "backend/attention_scratch.h"
#include "cuda/attention_cudnn.cpp"

#include <cstdlib>
#include <cstring>
#include <vector>

void cuda_flash_documents(Backend *, FlashDocuments *, const CudaDocuments *) {} // nothing runs here

static int capability;

static int multiprocessors() { return capability == 80 ? 108 : capability == 90 ? 132 : capability == 100 ? 148 : 170; }

extern "C" cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
    memset(properties, 0, sizeof *properties);
    properties->major = capability / 10;
    properties->multiProcessorCount = multiprocessors();
    return cudaSuccess;
}

static std::shared_ptr<fe::DeviceProperties> device() {
    std::string text =
        "{\"deviceName\":\"NVIDIA\",\"cudaDeviceId\":0,\"deviceVer\":" + std::to_string(capability * 10) +
        ",\"multiProcessorCount\":" + std::to_string(multiprocessors()) + ",\"maxSharedMemoryPerBlockOptin\":" +
        (capability == 80    ? "166912"
         : capability == 120 ? "101376"
                             : "232448") +
        ",\"driverVer\":13000,\"totalGlobalMem\":85017493504,\"maxGridSize\":[2147483647,65535,65535],"
        "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"warpSize\":32,"
        "\"maxSharedMemoryPerBlock\":49152,\"reservedSharedMemoryPerBlock\":1024,"
        "\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,"
        "\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
        "\"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800,"
        "\"oversizedSharedMemoryPerBlock\":0,\"memoryBusWidth\":5120}"; // these two since cuDNN 9.28 at the latest
    auto made = std::make_shared<fe::DeviceProperties>();
    fe::error_t status = made->deserialize(std::vector<uint8_t>(text.begin(), text.end()));
    if (status.is_good()) return made;
    fprintf(stderr, "%s\n", status.get_message().c_str());
    exit(1);
}

int main(int argc, char **argv) {
    capability = argc > 1 ? atoi(argv[1]) : 90;
    auto properties = device();
    AttentionShape s = {};
    s.mode = ATTENTION_FLASH;
    s.full = argc > 2 && strcmp(argv[2], "full") == 0;
    long b, q, h, k, d, v;
    char word[8];
    while (scanf("%ld %ld %ld %ld %ld %ld %7s", &b, &q, &h, &k, &d, &v, word) == 7) {
        s.deterministic = word[1] == 'n' ? DETERMINISTIC_ON : word[1] == 'f' ? DETERMINISTIC_OFF : DETERMINISTIC_AUTO;
        s.first = argc > 2 && strstr(argv[2], "range") != NULL ? 3 * q : 0;
        s.documents = argc > 2 && strstr(argv[2], "documents") != NULL;
        s.batch = b, s.seq = q, s.heads = h, s.kv_heads = k, s.head_dim = d, s.value_dim = v;
        bool same = attention_flash_deterministic(&s, capability);
        int64_t planned = attention_flash_workspace(&s, capability);
        AttentionShape most = attention_flash_part(&s, capability), kind, part;
        int64_t workspace = 0;
        std::string why;
        for (int i = 0; why.empty() && attention_flash_kind(&s, i, &kind) && attention_flash_kind(&most, i, &part);
             i++) {
            CudnnGraph forward = describe_forward_(&s, &kind), backward = describe_backward_(&s, &part, same);
            forward->set_device_properties(properties);
            backward->set_device_properties(properties);
            why = build_(forward, nullptr, &workspace);
            if (why.empty()) why = build_(backward, nullptr, &workspace);
        }
        if (why.empty() != (attention_without_flash(&s, 2, capability) == nullptr)) printf("!");
        if (why.empty()) printf("%lld %lld\n", (long long)workspace, (long long)planned);
        else printf("none: %s\n", why.c_str());
        fflush(stdout);
    }
}
