// Loads the GPU code when a run asks for it. A run on CPUs loads no part of CUDA, so its start takes only a few
// milliseconds. No handle is kept: a later dlopen returns the library that is already loaded.
#include "device.h"
#include "base/files.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const CudaLibrary *cuda_load(char why[256]) {
    static const char *const places[] = {CUDA_LIBRARY_FILE, "../lib/bpipe-trainer/" CUDA_LIBRARY_FILE, NULL};
    char path[PATH_MAX];
    why[0] = '\0';
    if (!file_near_program(path, sizeof path, places)) {
        snprintf(why, 256, "this program was built without GPU code; run `make` where nvcc is installed");
        return NULL;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const CudaLibrary *(*table)(void) = NULL;
    void *found = handle == NULL ? NULL : dlsym(handle, "cuda_library");
    memcpy(&table, &found, sizeof table); // C does not convert a data pointer to a function pointer
    if (table == NULL) {
        snprintf(why, 256, "the GPU code cannot be loaded: %.200s", dlerror());
        return NULL;
    }
    if (table()->interface == CUDA_INTERFACE) return table();
    snprintf(why, 256, "%.150s is from a different build than this program; run `make` again", path);
    return NULL;
}

bool cuda_driver_present(void) {
    return access("/proc/driver/nvidia/version", F_OK) == 0 || access("/dev/nvidiactl", F_OK) == 0 ||
           access("/dev/dxg", F_OK) == 0;
}
