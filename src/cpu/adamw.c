// AdamW (Loshchilov & Hutter 2019), the elementwise passes of Muon and the gradients' squared norms, over all tensors
// of a stage at once. The tensors are cut into chunks of equal size, so that many small tensors and one large one keep
// all threads equally busy.
#include "cpu.h"
#include "backend/adamw.h"
#include "lanes.h"

enum { CHUNK = 1 << 15, CHUNKS_AT_ONCE = 1024 };

static int64_t tensor_chunks_(const AdamwTensor *tensor) { return (tensor->count + CHUNK - 1) / CHUNK; }

static int64_t total_chunks_(const AdamwTensor *tensors, int64_t tensor_count) {
    int64_t total = 0;
    for (int64_t i = 0; i < tensor_count; i++) total += tensor_chunks_(&tensors[i]);
    return total;
}

typedef struct TensorRun {
    int64_t tensor, first, count; // elements [first, first + count) of tensors[tensor]
} TensorRun;

// Finds the chunk `index` by walking the tensors. The walk costs less than a hundredth of the work on the chunk.
static TensorRun chunk_find_(const AdamwTensor *tensors, int64_t index) {
    int64_t tensor = 0;
    while (index >= tensor_chunks_(&tensors[tensor])) index -= tensor_chunks_(&tensors[tensor++]);
    int64_t first = index * CHUNK, left = tensors[tensor].count - first;
    return (TensorRun){tensor, first, left < CHUNK ? left : CHUNK};
}

static double sum_of_squares_(const float *x, int64_t count) {
    LanesDouble sum = {0}, v;
    int64_t whole = lanes_whole(count, LANES_DOUBLE);
    for (int64_t i = 0; i < whole; i += LANES_DOUBLE) {
        lanes_load_double(&v, x + i);
        sum += v * v;
    }
    for (int64_t i = whole; i < count; i++) sum[i - whole] += (double)x[i] * (double)x[i];
    return lanes_fold_double(&sum);
}

// No chunk spans two tensors and chunks are added in order, so the bits of a norm do not depend on the other tensors.
void cpu_squared_norms(Backend *backend, double *out, const AdamwTensor *tensors, int64_t tensor_count) {
    (void)backend; // used only by the pragma
    int64_t total = total_chunks_(tensors, tensor_count);
    for (int64_t i = 0; i < tensor_count; i++) out[i] = 0.0;
    for (int64_t begin = 0; begin < total; begin += CHUNKS_AT_ONCE) {
        double sums[CHUNKS_AT_ONCE];
        int64_t end = begin + CHUNKS_AT_ONCE < total ? begin + CHUNKS_AT_ONCE : total;
        CPU_PARALLEL_FOR_DYNAMIC(cpu_self(backend))
        for (int64_t index = begin; index < end; index++) {
            TensorRun chunk = chunk_find_(tensors, index);
            sums[index - begin] = sum_of_squares_(tensors[chunk.tensor].gradient + chunk.first, chunk.count);
        }
        for (int64_t index = begin; index < end; index++)
            out[chunk_find_(tensors, index).tensor] += sums[index - begin];
    }
}

static void adamw_chunk_(float *restrict w, float *restrict m, float *restrict v, const float *restrict gradient,
                         int64_t count, const AdamwCoefficients c) {
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * c.gradient_scale;
        float m_new = c.beta1 * m[i] + c.rest1 * g;
        float v_new = c.beta2 * v[i] + c.rest2 * (g * g);
        float change = c.rate * m_new / (sqrtf(v_new) * c.root_scale + c.eps);
        w[i] -= change + c.decay * w[i];
        m[i] = m_new;
        v[i] = v_new;
    }
}

static void muon_chunk_(float *restrict w, const float *restrict direction, int64_t count, float rate, float decay) {
    for (int64_t i = 0; i < count; i++) w[i] -= rate * direction[i] + decay * w[i];
}

void cpu_momentum(Backend *backend, const AdamwTensor *tensors, int64_t tensor_count, double beta,
                  double gradient_scale) {
    int64_t total = total_chunks_(tensors, tensor_count);
    const float kept = (float)beta, rest = (float)(1.0 - beta), scale = (float)gradient_scale;
    CPU_PARALLEL_FOR_DYNAMIC(cpu_self(backend))
    for (int64_t index = 0; index < total; index++) {
        TensorRun chunk = chunk_find_(tensors, index);
        float *restrict m = tensors[chunk.tensor].m + chunk.first;
        float *restrict gradient = tensors[chunk.tensor].gradient + chunk.first;
        for (int64_t i = 0; i < chunk.count; i++) {
            float g = rest * (scale * gradient[i]);
            m[i] = kept * m[i] + g;
            gradient[i] = kept * m[i] + g;
        }
    }
}

void cpu_adamw(Backend *backend, const AdamwTensor *tensors, int64_t tensor_count, const AdamwStep *step) {
    int64_t total = total_chunks_(tensors, tensor_count);
    AdamwCoefficients with_decay = adamw_coefficients(step), without = with_decay;
    without.decay = 0.0f;
    CPU_PARALLEL_FOR_DYNAMIC(cpu_self(backend))
    for (int64_t index = 0; index < total; index++) {
        TensorRun chunk = chunk_find_(tensors, index);
        const AdamwTensor *t = &tensors[chunk.tensor];
        float *w = (t->master ? t->master : (float *)t->weight) + chunk.first;
        float *gradient = t->gradient + chunk.first;
        const AdamwCoefficients *c = t->decay ? &with_decay : &without;
        if (t->v == NULL) muon_chunk_(w, gradient, chunk.count, (float)(step->lr * t->scale), c->decay);
        else adamw_chunk_(w, t->m + chunk.first, t->v + chunk.first, gradient, chunk.count, *c);
        if (t->master) cpu_store(backend, t->weight, chunk.first, w, chunk.count);
        if (!t->written) memset(gradient, 0, (size_t)chunk.count * sizeof *gradient);
    }
}
