// Included before each of mlx-c's files, so that they can be compiled unchanged.
#ifndef GOMFLUX_COMPAT_H
#define GOMFLUX_COMPAT_H

// libstdc++ before 13 has no std::format, so there {fmt}, whose calls are the
// same, stands in.
#if __has_include(<format>)
#include <format>
#elif __has_include(<fmt/format.h>)
#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

namespace std {
using fmt::format;
}
#else
#error "no std::format and no {fmt}: use g++ 13 or newer, or install libfmt-dev"
#endif

#include "mlx/ops.h"

namespace mlx::core {

// mlx-c 0.7.0 is made for MLX 0.32.2. Its call of gather_qmm lacks the
// global_scale that newer versions take before sorted_indices.
inline array gather_qmm(
    const array& x,
    const array& w,
    const array& scales,
    const std::optional<array>& biases,
    std::optional<array> lhs_indices,
    std::optional<array> rhs_indices,
    bool transpose,
    std::optional<int> group_size,
    std::optional<int> bits,
    const std::string& mode,
    bool sorted_indices,
    StreamOrDevice s) {
  return gather_qmm(
      x,
      w,
      scales,
      biases,
      std::move(lhs_indices),
      std::move(rhs_indices),
      transpose,
      group_size,
      bits,
      mode,
      std::nullopt,
      sorted_indices,
      s);
}

} // namespace mlx::core

#endif
