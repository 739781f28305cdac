// `--version`. Bug reports need the libraries that a program was built with, and users who copy a program to another
// machine want to know its capabilities there. Libraries report their own versions if they can; no device is touched.
#include "trainer.h"

#include "base/version.h"
#include "device/device.h"

#include <string.h>

#ifdef HAVE_DNNL
#include <dnnl.h>
#endif
#ifdef HAVE_MPI
#include <mpi.h>
#endif

static void report_cpu_(FILE *file) {
#ifdef HAVE_DNNL
    const dnnl_version_t *dnnl = dnnl_version();
    fprintf(file, "CPU   oneDNN %d.%d.%d", dnnl->major, dnnl->minor, dnnl->patch);
#else
    fputs("CPU   without oneDNN", file);
#endif
#ifdef _OPENMP
    fprintf(file, ", OpenMP (%d)\n", _OPENMP);
#else
    fputs(", without OpenMP\n", file);
#endif
}

// The library may be called before MPI_Init for this. Its text has lines of its own about where it was built.
static void report_mpi_(FILE *file) {
#ifdef HAVE_MPI
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0';
    fprintf(file, "MPI   %s\n", text);
#else
    fputs("MPI   none: one rank only\n", file);
#endif
}

static void report_gpu_(FILE *file) {
    char text[256] = "";
    const CudaLibrary *cuda = cuda_load(text);
    if (cuda != NULL) cuda->versions(text, sizeof text);
    fprintf(file, "GPU   %s%s\n", cuda == NULL ? "none: " : "", text);
}

void version_report(const char *program, FILE *file) {
    fprintf(file, "%s %s\n", program, VERSION);
    report_cpu_(file);
    report_mpi_(file);
    report_gpu_(file);
}
