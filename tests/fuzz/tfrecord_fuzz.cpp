// Any bytes, compressed or not, give records and DataErrors, and the same ones after a restored
// position.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/sources/tfrecord.h"

namespace {

using lockstep::TFRecordReader;

void expect(bool condition) {
  if (!condition) std::abort();
}

// The records, with nullopt in place of each damaged one.
std::vector<std::optional<std::string>> drain(TFRecordReader& reader) {
  std::vector<std::optional<std::string>> records;
  for (;;) {
    try {
      const auto record = reader.next();
      if (!record) return records;
      records.emplace_back(*record);
    } catch (const lockstep::DataError&) {
      records.emplace_back();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    TFRecordReader reader(lockstep::view_bytes(bytes, "input"), {.buffer = 4096});
    const auto records = drain(reader);

    TFRecordReader first(lockstep::view_bytes(bytes, "input"));
    std::int64_t skipped = 0;
    try {
      skipped = first.skip(2);
    } catch (const lockstep::DataError&) {
      return 0;
    }
    TFRecordReader second(lockstep::view_bytes(bytes, "input"));
    second.restore(first.save());
    const auto rest = drain(second);
    expect(rest == std::vector(records.begin() + skipped, records.end()));
  } catch (const lockstep::DataError&) {
  }
  return 0;
}
