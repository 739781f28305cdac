// The lengths and offsets of documents that a call of cuDNN's flash attention reads. They are kernel arguments, so the
// host need not keep a copy until the call has run. Entries without a document have no queries and no keys, as those of
// JAX have (jax-ml/jax, pull request 30023). Entries with queries and without keys give NaN before cuDNN 9.25
// (NVIDIA/cudnn-frontend, issue 943), but no document is one.
#include "cuda/internal.h"
#include "cuda/launch.cuh"

namespace {

__global__ void flash_documents_kernel(FlashDocuments *to, const CudaDocuments list) {
    int i = (int)threadIdx.x;
    CudaDocument document = list.document[list.count - 1];
    if (i < list.count) document = list.document[i];
    else document = CudaDocument{document.query + document.queries, 0, document.key + document.keys, 0};
    for (int kind = 0; kind < FLASH_ROW_KINDS; kind++)
        to->begin[kind][i] = (kind == FLASH_KEYS ? document.key : document.query) * list.row[kind];
    if (i < FLASH_DOCUMENTS) to->queries[i] = document.queries, to->keys[i] = document.keys;
}

} // namespace

void cuda_flash_documents(Backend *be, FlashDocuments *to, const CudaDocuments *list) {
    CUDA_LAUNCH(be, 1, FLASH_DOCUMENTS + 1, 0, flash_documents_kernel, to, *list);
}
