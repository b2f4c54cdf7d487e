// CRC-32C (Castagnoli's polynomial), the checksum of TFRecord files and TensorBoard's event files.
// Uses the SSE 4.2 instruction where the processor has it, otherwise tables, eight bytes at a time.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// The checksum of a sequence of bytes that ends with these; `before` is the checksum of the ones in
// front of them.
std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0);

// The form stored in records: rotated right by 15 bits, plus a constant, so that a checksum over
// data that contain checksums is no weaker.
std::uint32_t masked_crc32c(std::string_view bytes);

// crc32c with tables only; for tests and for processors without SSE 4.2.
std::uint32_t crc32c_by_tables(std::string_view bytes, std::uint32_t before = 0);

}  // namespace lockstep
