// A function that mlx-c lacks, in libmlxc beside its own.
#ifndef GOMFLUX_CUDA_KERNEL_H
#define GOMFLUX_CUDA_KERNEL_H

#include <stddef.h>

#include "mlx/c/stream.h"
#include "mlx/c/vector.h"

#ifdef __cplusplus
extern "C" {
#endif

// Runs a compiled CUDA kernel (mlx::core::fast::precompiled_cuda_kernel). name is that of its
// function in code. outputs_layout has a dtype, a number of axes and their sizes for each output.
// The function's parameters are the inputs, the outputs, ints and floats. grid has the numbers of
// blocks, and threads is that of a block.
int gomflux_cuda_kernel(
    mlx_vector_array* res,
    const char* name,
    const void* code,
    size_t code_size,
    const mlx_vector_array inputs,
    const int* outputs_layout,
    size_t outputs,
    const int* ints,
    size_t n_ints,
    const float* floats,
    size_t n_floats,
    const int* grid,
    int threads,
    const mlx_stream s);

#ifdef __cplusplus
}
#endif

#endif
