// AdamW (Loshchilov & Hutter 2019), the elementwise passes of Muon and the gradients' squared norms, over all tensors
// of a stage at once. The tensors are cut into runs of equal size, so that many small tensors and one large one keep
// all threads equally busy.
#include "cpu.h"
#include "backend/adamw.h"
#include "lanes.h"

enum { RUN = 1 << 15, RUNS_AT_ONCE = 1024 };

static int64_t tensor_runs_(const AdamwTensor *tensor) { return (tensor->count + RUN - 1) / RUN; }

static int64_t total_runs_(const AdamwTensor *tensors, int64_t tensor_count) {
    int64_t total = 0;
    for (int64_t i = 0; i < tensor_count; i++) total += tensor_runs_(&tensors[i]);
    return total;
}

typedef struct TensorRun {
    int64_t tensor, first, count; // elements [first, first + count) of tensors[tensor]
} TensorRun;

// Finds the run `index` by walking the tensors. The walk costs less than a hundredth of the work on the run.
static TensorRun run_find_(const AdamwTensor *tensors, int64_t index) {
    int64_t tensor = 0;
    while (index >= tensor_runs_(&tensors[tensor])) index -= tensor_runs_(&tensors[tensor++]);
    int64_t first = index * RUN, left = tensors[tensor].count - first;
    return (TensorRun){tensor, first, left < RUN ? left : RUN};
}

// No run spans two tensors and runs are added in order, so the bits of a norm do not depend on the other tensors.
void cpu_squared_norms(Backend *be, double *out, const AdamwTensor *tensors, int64_t tensor_count) {
    int64_t total = total_runs_(tensors, tensor_count);
    for (int64_t i = 0; i < tensor_count; i++) out[i] = 0.0;
    for (int64_t begin = 0; begin < total; begin += RUNS_AT_ONCE) {
        double sums[RUNS_AT_ONCE];
        int64_t end = begin + RUNS_AT_ONCE < total ? begin + RUNS_AT_ONCE : total;
        CPU_PARALLEL_FOR_DYNAMIC(be)
        for (int64_t index = begin; index < end; index++) {
            TensorRun run = run_find_(tensors, index);
            const float *x = tensors[run.tensor].gradient + run.first;
            LanesDouble sum = {0}, v;
            int64_t whole = lanes_whole(run.count, LANES_DOUBLE);
            for (int64_t i = 0; i < whole; i += LANES_DOUBLE) {
                lanes_load_double(&v, x + i);
                sum += v * v;
            }
            for (int64_t i = whole; i < run.count; i++) sum[i - whole] += (double)x[i] * (double)x[i];
            sums[index - begin] = lanes_fold_double(&sum);
        }
        for (int64_t index = begin; index < end; index++) out[run_find_(tensors, index).tensor] += sums[index - begin];
    }
}

void cpu_momentum(Backend *be, const AdamwTensor *tensors, int64_t tensor_count, double beta, double gradient_scale) {
    int64_t total = total_runs_(tensors, tensor_count);
    const float kept = (float)beta, rest = (float)(1.0 - beta), scale = (float)gradient_scale;
    CPU_PARALLEL_FOR_DYNAMIC(be)
    for (int64_t index = 0; index < total; index++) {
        TensorRun run = run_find_(tensors, index);
        float *restrict m = tensors[run.tensor].m + run.first;
        float *restrict gradient = tensors[run.tensor].gradient + run.first;
        for (int64_t i = 0; i < run.count; i++) {
            float g = rest * (scale * gradient[i]);
            m[i] = kept * m[i] + g;
            gradient[i] = kept * m[i] + g;
        }
    }
}

void cpu_adamw(Backend *be, const AdamwTensor *tensors, int64_t tensor_count, const AdamwStep *step) {
    int64_t total = total_runs_(tensors, tensor_count);
    AdamwCoefficients with_decay = adamw_coefficients(step), without = with_decay;
    without.decay = 0.0f;
    CPU_PARALLEL_FOR_DYNAMIC(be)
    for (int64_t index = 0; index < total; index++) {
        TensorRun run = run_find_(tensors, index);
        const AdamwTensor *t = &tensors[run.tensor];
        float *restrict w = (t->master ? t->master : (float *)t->weight) + run.first;
        float *restrict gradient = t->gradient + run.first;
        float *restrict m = t->m + run.first, *restrict v = t->v == NULL ? NULL : t->v + run.first;
        const AdamwCoefficients c = t->decay ? with_decay : without;
        const float rate = (float)(step->lr * t->scale); // a matrix of Muon's: the gradient is its direction
        for (int64_t i = 0; i < run.count && v == NULL; i++) w[i] -= rate * gradient[i] + c.decay * w[i];
        for (int64_t i = 0; i < run.count && v != NULL; i++) {
            float g = gradient[i] * c.gradient_scale;
            float m_new = c.beta1 * m[i] + c.rest1 * g;
            float v_new = c.beta2 * v[i] + c.rest2 * (g * g);
            float change = c.rate * m_new / (sqrtf(v_new) * c.root_scale + c.eps);
            w[i] -= change + c.decay * w[i];
            m[i] = m_new;
            v[i] = v_new;
        }
        if (t->master) cpu_store(be, t->weight, run.first, w, run.count);
        if (!t->written) memset(gradient, 0, (size_t)run.count * sizeof *gradient);
    }
}
