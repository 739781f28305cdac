// Loads the GPU code when a run asks for it. Without a GPU nothing of CUDA is touched, which keeps a start on a CPU at
// a few milliseconds. dlopen counts its callers, so no handle is kept here.
#include "device.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// Writes the folder of the running program, without a slash at its end. Returns -1 if the system does not say.
static int program_folder_(char folder[PATH_MAX]) {
    ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    if (length <= 0) return -1;
    folder[length] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash == NULL) return -1;
    *slash = '\0';
    return 0;
}

// Writes the library's path, looking next to the program first. Returns false if it is in neither place.
static bool library_path_(char path[PATH_MAX]) {
    static const char *const places[] = {"", "../lib/bpipe-trainer/"};
    char folder[PATH_MAX];
    if (program_folder_(folder) != 0) return false;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        int length = snprintf(path, PATH_MAX, "%s/%s%s", folder, places[i], CUDA_LIBRARY_FILE);
        if (length < PATH_MAX && access(path, R_OK) == 0) return true;
    }
    return false;
}

const CudaLibrary *cuda_load(char why[256]) {
    char path[PATH_MAX];
    why[0] = '\0';
    if (!library_path_(path)) {
        snprintf(why, 256, "this program was built without GPU code; run `make` where nvcc is installed");
        return NULL;
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const CudaLibrary *(*table)(void) = NULL;
    void *found = handle == NULL ? NULL : dlsym(handle, "cuda_library");
    memcpy(&table, &found, sizeof table); // C has no conversion between the two kinds of pointer
    if (table == NULL) {
        snprintf(why, 256, "the GPU code cannot be loaded: %.200s", dlerror());
        return NULL;
    }
    if (table()->interface == CUDA_INTERFACE) return table();
    snprintf(why, 256, "%.150s is of another build than this program; run `make` again", path);
    return NULL;
}

bool cuda_driver_present(void) {
    return access("/proc/driver/nvidia/version", F_OK) == 0 || access("/dev/nvidiactl", F_OK) == 0 ||
           access("/dev/dxg", F_OK) == 0;
}
