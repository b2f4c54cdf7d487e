// Any bytes, compressed or not, give rows and DataErrors, and the same ones after a restored
// position. The first byte chooses the options.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/sources/csv.h"

namespace {

using lockstep::CsvReader;
using lockstep::DType;

void expect(bool condition) {
  if (!condition) std::abort();
}

lockstep::CsvOptions options_of(unsigned choice) {
  lockstep::CsvOptions options;
  options.header = (choice & 1) != 0;
  options.quotes = (choice & 2) != 0;
  options.delimiter = (choice & 4) != 0 ? ',' : '\t';
  options.buffer = 4096;
  options.components.clear();
  if ((choice & 8) != 0) {
    options.components.push_back(
        {.columns = {options.header ? "a" : "0"}, .dtype = DType::U8, .missing = "none"});
  }
  const DType types[] = {DType::F32, DType::F64, DType::I32, DType::I64, DType::Bool};
  options.components.push_back({.dtype = types[(choice >> 4) % 5], .missing = "1"});
  return options;
}

std::string bytes_of(const lockstep::Tensor& tensor) {
  return std::string(reinterpret_cast<const char*>(tensor.raw()), tensor.bytes());
}

// The rows, with the error message in place of each damaged one.
std::vector<std::string> drain(CsvReader& reader) {
  std::vector<std::string> rows;
  for (;;) {
    try {
      const auto row = reader.next();
      if (!row) return rows;
      std::string& all = rows.emplace_back();
      for (const lockstep::Tensor& tensor : *row) all += bytes_of(tensor);
    } catch (const lockstep::DataError& error) {
      rows.emplace_back(error.what());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const lockstep::CsvOptions options = options_of(data[0]);
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    CsvReader reader(lockstep::view_bytes(bytes, "input"), options);
    const std::vector<std::string> rows = drain(reader);

    CsvReader first(lockstep::view_bytes(bytes, "input"), options);
    std::int64_t skipped = 0;
    try {
      skipped = first.skip(3);
    } catch (const lockstep::DataError&) {
      return 0;
    }
    CsvReader second(lockstep::view_bytes(bytes, "input"), options);
    second.restore(first.save());
    expect(drain(second) == std::vector<std::string>(rows.begin() + skipped, rows.end()));
  } catch (const lockstep::DataError&) {
  }
  return 0;
}
