// --tune: the rehearsal of a start runs every product of the configuration once, and the backend then measures it
// (matmul.cpp); here the ranks' measurements become one file. Ranks that compute the same product are added up, so that
// one disturbed rank does not choose for all.
#include "base/alloc.h"
#include "base/files.h"
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int run_tune(Run *run, Error *err) {
    const char *path = run->config->hardware.products_file;
    bool first = world_rank(run->world) == 0;
    int ranks = world_size(run->world);
    double library = (double)run->be->library; // device_open refuses different GPUs
    double most[] = {(double)run->products.count, library, -library, run_stop_requested()};
    if (world_max(run->world, most, 4, err) != 0) return -1;
    if (most[3] > 0) return error_on_all(err, EXIT_FAILED, "stopped on request; no file was written");
    if (most[1] != -most[2])
        return error_on_all(err, EXIT_USAGE,
                            "--tune: the ranks have different cuBLAS versions, but a file is for one; install one on "
                            "all hosts");
    int64_t each = (int64_t)most[0];
    ProductKernels *mine = xcalloc((size_t)each + 1, sizeof *mine); // entries after the last product have no candidates
    ProductKernels *all = first ? xcalloc((size_t)(each * ranks) + 1, sizeof *all) : NULL;
    if (run->products.count > 0) memcpy(mine, run->products.product, (size_t)run->products.count * sizeof *mine);
    int status = world_gather(run->world, all, mine, each * (int64_t)sizeof *mine, err);
    Error own = {0};
    ProductChoices chosen = {0};
    int64_t better = 0;
    double before = 0, after = 0;
    if (status == 0 && first) {
        for (int64_t i = 0; i < each * ranks; i++)
            if (all[i].candidates > 0) products_add(&chosen, &all[i]);
        for (int64_t i = 0; i < chosen.count; i++) {
            const ProductKernels *product = &chosen.product[i];
            int64_t fastest = products_fastest(product);
            if (!isfinite(product->seconds[0])) continue; // the first suggestion fails: nothing to compare with
            better += fastest > 0;
            before += product->seconds[0], after += product->seconds[fastest];
        }
        char *text = products_text(&chosen, run->be->device, run->be->library);
        if (file_replace(path, text, (int64_t)strlen(text)) != 0) file_failed(path, "written", &own);
        else if (before > 0)
            log_status(&run->all,
                       "%s: %lld products of %s measured; %lld have a faster kernel than the library's first "
                       "suggestion, which shortens their total time by %.1f %%",
                       path, (long long)chosen.count, run->be->device, (long long)better, 100 * (1 - after / before));
        else log_status(&run->all, "%s: %s has one kernel for each product: nothing to choose", path, run->be->device);
        free(text);
    }
    products_free(&chosen);
    free_all(mine, all);
    return status == 0 ? world_agree(run->world, &own, err) : -1;
}

int run_read_products(Run *run, Error *err) {
    enum { MOST = 16 << 20 };
    const char *path = run->config->hardware.products_file;
    Error mine = {0};
    int64_t length = 0;
    char note[CONFIG_TEXT + 160] = "";
    char *text = world_rank(run->world) == 0 ? file_read_whole(path, MOST, &length, &mine) : NULL;
    int status = world_agree(run->world, &mine, err);
    if (status == 0) status = world_broadcast(run->world, &length, sizeof length, err);
    if (status == 0 && text == NULL) text = xcalloc((size_t)length + 1, 1);
    if (status == 0) status = world_broadcast(run->world, text, length, err);
    if (status == 0) products_read(&run->products, text, length, path, run->be->device, run->be->library, note, &mine);
    free(text);
    // If the file does not match the GPUs of all ranks, no rank uses it: replicas would sum in different orders.
    double odd = note[0] != '\0';
    if (status != 0 || world_agree(run->world, &mine, err) != 0 || world_max(run->world, &odd, 1, err) != 0) return -1;
    if (odd == 0) return 0;
    products_free(&run->products);
    if (note[0] == '\0')
        snprintf(note, sizeof note,
                 "hardware.products_file %s does not match the GPUs of all ranks: the library's first suggestions are "
                 "used; run --tune again",
                 path);
    log_line(&run->all, "%s", note);
    return 0;
}
