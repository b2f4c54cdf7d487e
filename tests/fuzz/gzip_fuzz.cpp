// Data inflates to the same bytes at once, in chunks, and from a saved position in the middle, or
// gives a DataError. Restoring a damaged position gives a DataError or a UsageError, too.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/sources/byte_stream.h"

namespace {

using lockstep::ByteStream;

void expect(bool condition) {
  if (!condition) std::abort();
}

struct Inflated {
  std::string bytes;
  bool damaged = false;
  bool operator==(const Inflated&) const = default;
};

Inflated drain(ByteStream& stream, std::size_t piece) {
  constexpr std::size_t kMost = 1 << 20;
  Inflated all;
  try {
    while (all.bytes.size() < kMost) {
      const std::string_view window = stream.peek(piece).substr(0, piece);
      if (window.empty()) break;
      all.bytes += window;
      stream.consume(window.size());
    }
  } catch (const lockstep::DataError&) {
    all.damaged = true;
    const std::string_view left = stream.peek(0);
    all.bytes += left;
    stream.consume(left.size());
  }
  if (all.bytes.size() >= kMost) return {};  // a decompression bomb
  return all;
}

ByteStream open(std::string_view bytes, std::size_t buffer) {
  return ByteStream(lockstep::view_bytes(bytes, "input"),
                    {.buffer = buffer, .compression = lockstep::Compression::Gzip});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ByteStream whole = open(bytes, 256 << 10);
  const Inflated all = drain(whole, 100'000);
  ByteStream pieces = open(bytes, 4096);
  expect(drain(pieces, 997) == all);

  const std::size_t half = all.bytes.size() / 2;
  ByteStream front = open(bytes, 4096);
  if (half == 0 || front.skip(half) != half) return 0;
  std::string state = front.save();
  ByteStream back = open(bytes, 4096);
  back.restore(state);
  const Inflated rest = drain(back, 1000);
  expect(rest.bytes == all.bytes.substr(half) && rest.damaged == all.damaged);

  state[size % state.size()] = static_cast<char>(data[0] ^ data[size - 1]);
  try {
    back.restore(state);
    drain(back, 1000);
  } catch (const lockstep::Error&) {
  }
  return 0;
}
