// Included before each of mlx-c's files: libstdc++ before 13 has no
// std::format, so there {fmt}, whose calls are the same, stands in.
#ifndef GOMFLUX_FORMAT_H
#define GOMFLUX_FORMAT_H

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

#endif
