// Any bytes, compressed or not, are records and then perhaps a DataError; and they are the same
// ones behind a restored position.
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

// The records; nothing in place of one that is damaged.
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
