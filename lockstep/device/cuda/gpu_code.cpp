#include "lockstep/device/cuda/gpu_code.h"

#include <fmt/format.h>

#include <charconv>

namespace lockstep {
namespace {

bool runs(const Gpu& gpu, std::string_view architecture) {
  int number = 0;  // 90 for compute capability 9.0
  const char* const end = architecture.data() + architecture.size();
  const auto [rest, error] = std::from_chars(architecture.data(), end, number);
  if (error != std::errc()) return true;  // "native", "all": trust the build
  const std::string_view form(rest, end);
  const bool as_new = 10 * gpu.major + gpu.minor >= number;
  // "90" means both forms. One with a letter, such as 90a, runs only on that generation.
  const bool machine_code = !form.ends_with("-virtual");
  const bool virtual_code = form.empty() || form == "-virtual";
  return as_new && (virtual_code || (machine_code && gpu.major == number / 10));
}

}  // namespace

std::string why_no_code_for(const Gpu& gpu, std::string_view architectures) {
  for (std::string_view left = architectures;;) {
    const std::size_t end = left.find(' ');
    if (runs(gpu, left.substr(0, end))) return "";
    if (end == std::string_view::npos) break;
    left.remove_prefix(end + 1);
  }
  return fmt::format(
      "{} has compute capability {}.{}, and Lockstep was compiled for other kinds of GPU ({}): "
      "build "
      "it with -DCMAKE_CUDA_ARCHITECTURES={}{}",
      gpu.model, gpu.major, gpu.minor, architectures, gpu.major, gpu.minor);
}

}  // namespace lockstep
