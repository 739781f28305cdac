// The coefficients of an AdamW step in fp32, as the element loops of every device use them.
#pragma once

#include "backend.h"

#include <math.h>

// With c1 = 1 - beta1^t and c2 = 1 - beta2^t:
// w -= lr * (m / c1) / (sqrt(v / c2) + eps) + lr * weight_decay * w.
typedef struct AdamwCoefficients {
    float gradient_scale, beta1, beta2, rest1, rest2, rate, root_scale, eps, decay, lr;
} AdamwCoefficients;

static inline AdamwCoefficients adamw_coefficients(const AdamwStep *step) {
    double correction1 = 1.0 - pow(step->beta1, (double)step->step);
    double correction2 = 1.0 - pow(step->beta2, (double)step->step);
    AdamwCoefficients c;
    c.gradient_scale = (float)step->gradient_scale;
    c.beta1 = (float)step->beta1, c.rest1 = (float)(1.0 - step->beta1);
    c.beta2 = (float)step->beta2, c.rest2 = (float)(1.0 - step->beta2);
    c.rate = (float)(step->lr / correction1);
    c.root_scale = (float)(1.0 / sqrt(correction2));
    c.eps = (float)step->eps;
    c.decay = (float)(step->lr * step->weight_decay);
    c.lr = (float)step->lr;
    return c;
}
