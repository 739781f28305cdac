// Mixtures of experts: the router and the order of rows by expert.
#include "vector.cuh"

static const char LATER[] = "experts are not computed on GPUs yet";

void cuda_route_forward(Backend *backend, int32_t *, float *, const float *, const float *, int64_t,
                        const RouteShape *) {
    cuda_refuse(cuda_self(backend), LATER);
}
void cuda_route_counts(Backend *backend, int64_t *counts, int64_t parts, const int32_t *, int64_t,
                       const RouteShape *shape) {
    memset(counts, 0, (size_t)(parts * shape->experts) * sizeof *counts);
    cuda_refuse(cuda_self(backend), LATER);
}
void cuda_route_places(Backend *backend, int32_t *, const int32_t *, int64_t, const RouteShape *) {
    cuda_refuse(cuda_self(backend), LATER);
}
void cuda_route_backward(Backend *backend, void *, const float *, const int32_t *, const float *, const float *, double,
                         int64_t, const RouteShape *) {
    cuda_refuse(cuda_self(backend), LATER);
}
void cuda_rows_scatter(Backend *backend, void *, const void *, const int32_t *, int64_t, int64_t, int64_t) {
    cuda_refuse(cuda_self(backend), LATER);
}
void cuda_rows_gather(Backend *backend, void *, const void *, const int32_t *, int64_t, int64_t) {
    cuda_refuse(cuda_self(backend), LATER);
}
void cuda_rows_combine(Backend *backend, void *, const void *, const int32_t *, int64_t, int64_t, int64_t) {
    cuda_refuse(cuda_self(backend), LATER);
}
