// Any bytes give a picture, decoded whole and through the reader's crop, resize and mirroring, or a
// DataError. PNG's checksums are corrected first, because they would reject most inputs.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/data/image/reader.h"

namespace {

using lockstep::ColorMode;

std::uint32_t crc32(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320 : 0);
  }
  return ~crc;
}

void mend_checksums(std::span<std::byte> png) {
  std::size_t at = 8;
  while (png.size() >= at + 12) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      length = length << 8 | std::to_integer<std::size_t>(png[at + i]);
    }
    if (length > png.size() - at - 12) return;
    const std::uint32_t crc = crc32(png.subspan(at + 4, length + 4));
    for (std::size_t i = 0; i < 4; ++i) {
      png[at + 8 + length + i] = static_cast<std::byte>(crc >> (24 - 8 * i));
    }
    at += length + 12;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr lockstep::DecodeLimits kLimits{.pixels = 1 << 16, .scans = 20};
  constexpr ColorMode kModes[] = {ColorMode::Grayscale, ColorMode::Rgb, ColorMode::Rgba};
  const std::span<const std::byte> given = std::as_bytes(std::span(data, size));
  std::vector<std::byte> bytes(given.begin(), given.end());
  constexpr std::byte kPng{0x89};
  if (size > 0 && bytes[0] == kPng) mend_checksums(bytes);
  const ColorMode mode = kModes[size % 3];
  try {
    lockstep::ImageDecoder decoder(kLimits);
    const lockstep::Tensor image = decoder.decode(bytes, "input", {.color_mode = mode});
    volatile std::uint8_t last = image.values<std::uint8_t>().back();
    (void)last;
  } catch (const lockstep::DataError&) {
  }
  try {
    lockstep::ImageReader reader({.height = 12,
                                  .width = 10,
                                  .color_mode = mode,
                                  .crop = lockstep::ImageCrop::Random,
                                  .mirror_probability = 0.5f,
                                  .antialias = true,
                                  .limits = kLimits});
    std::vector<std::byte> sample(reader.sample_bytes());
    lockstep::RandomSequence random(1, size);
    reader.read(bytes, "input", random, sample);
  } catch (const lockstep::DataError&) {
  }
  return 0;
}
