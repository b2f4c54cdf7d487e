#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/device/cuda/cuda_device.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrefix = "cuda:";

// The non-negative number in a text; -1 if the text is not one.
int number_of(std::string_view text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= 0 ? number : -1;
}

}  // namespace

bool names_cuda(std::string_view name) {
  return name.starts_with("cuda");
}

CudaName parse_cuda_name(std::string_view name) {
  CudaName parsed;
  bool valid = name.starts_with(kPrefix);
  if (valid) {
    const std::string_view numbers = name.substr(kPrefix.size());
    const std::size_t slash = numbers.find('/');
    parsed.gpu = number_of(numbers.substr(0, slash));
    if (slash != std::string_view::npos) parsed.part = number_of(numbers.substr(slash + 1));
    valid = parsed.gpu >= 0 && (slash == std::string_view::npos || parsed.part >= 0);
  }
  require(valid,
          "[device] {} is not the name of a CUDA device: write cuda:0 for the first GPU, cuda:0/1 "
          "for the "
          "second of several replicas that share it",
          name);
  return parsed;
}

}  // namespace lockstep
