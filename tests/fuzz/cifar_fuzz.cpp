// Any bytes, compressed or not, give valid images and labels or a DataError. The first byte chooses
// between CIFAR-10 and CIFAR-100.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/data/sources/cifar.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool hundred = data[0] % 2 != 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    const lockstep::CifarSamples samples = lockstep::parse_cifar(
        bytes, hundred ? lockstep::CifarKind::Cifar100 : lockstep::CifarKind::Cifar10, "input");
    const auto pixels = samples.images.values<std::uint8_t>();
    volatile unsigned sum = std::accumulate(pixels.begin(), pixels.end(), 0u);
    (void)sum;
    for (const std::uint8_t label : samples.labels.values<std::uint8_t>()) {
      if (label >= (hundred ? 100 : 10)) std::abort();
    }
  } catch (const lockstep::DataError&) {
  }
  return 0;
}
