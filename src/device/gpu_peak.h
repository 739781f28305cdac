#ifndef GPU_PEAK_H
#define GPU_PEAK_H

// Dense matrix rate of a GPU by its name, in TFLOP/s with fp32 accumulation, from the vendor's data sheets. `precision`
// is a Precision. 0 if the name is unknown.
double gpu_peak_tflops(const char *name, int precision);

#endif
