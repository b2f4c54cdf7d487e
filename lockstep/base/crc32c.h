// CRC-32C (Castagnoli's polynomial), the checksum of TFRecord files and TensorBoard's event files.
// With the instruction of SSE 4.2 where the processor has it, eight bytes a table look-up
// otherwise.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// Of `before`'s bytes followed by these, where `before` is the checksum of what came first.
std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0);

// The form in which records carry it, so that a checksum over data that hold checksums is no
// weaker: rotated right by 15 bits, plus a constant.
std::uint32_t masked_crc32c(std::string_view bytes);

// The same as crc32c by tables alone, on any processor.
std::uint32_t crc32c_by_tables(std::string_view bytes, std::uint32_t before = 0);

}  // namespace lockstep
