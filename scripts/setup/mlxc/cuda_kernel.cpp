#include "cuda_kernel.h"

#include <exception>
#include <string>
#include <tuple>
#include <vector>

#include "mlx/c/error.h"
#include "mlx/c/private/mlx.h"
#include "mlx/fast.h"

extern "C" int gomflux_cuda_kernel(
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
    const mlx_stream s) {
  try {
    std::vector<mlx::core::Shape> shapes;
    std::vector<mlx::core::Dtype> dtypes;
    for (size_t i = 0; i < outputs; i++) {
      dtypes.push_back(mlx_dtype_to_cpp(static_cast<mlx_dtype>(*outputs_layout++)));
      const int axes = *outputs_layout++;
      shapes.emplace_back(outputs_layout, outputs_layout + axes);
      outputs_layout += axes;
    }
    std::vector<mlx::core::fast::ScalarArg> scalars(ints, ints + n_ints);
    scalars.insert(scalars.end(), floats, floats + n_floats);
    // MLX takes the number of threads of the whole grid
    mlx_vector_array_set_(
        *res,
        mlx::core::fast::precompiled_cuda_kernel(
            name,
            std::string(static_cast<const char*>(code), code_size),
            mlx_vector_array_get_(inputs),
            shapes,
            dtypes,
            scalars,
            std::make_tuple(grid[0] * threads, grid[1], grid[2]),
            std::make_tuple(threads, 1, 1),
            0,
            std::nullopt,
            true,
            mlx_stream_get_(s)));
  } catch (std::exception& e) {
    mlx_error("%s", e.what());
    return 1;
  }
  return 0;
}
