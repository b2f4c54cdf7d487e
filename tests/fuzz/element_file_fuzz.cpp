// Any bytes, as a file of elements or as the contents of valid records, give a DataError or
// elements that can be read completely, with the same values in any order.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/element_file.h"

namespace {

using lockstep::Element;
using lockstep::ElementFile;

void expect(bool condition) {
  if (!condition) std::abort();
}

void append_number(std::string& bytes, std::uint64_t value, int size) {
  for (int i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> 8 * i & 0xFF));
}

// A file with correct checksums and index, so that the fuzzer gets past them: its records hold
// equal parts of the bytes.
std::string file_of(std::string_view bytes, std::size_t records) {
  const std::string_view head = bytes.substr(0, bytes.size() % 8);
  std::string file = "lockstep elems 1";
  append_number(file, head.size(), 8);
  append_number(file, lockstep::masked_crc32c(head), 4);
  file += head;
  std::string index;
  const std::size_t part = bytes.size() / records;
  for (std::size_t i = 0; i < records; ++i) {
    const std::string_view element = bytes.substr(i * part, part);
    append_number(index, file.size(), 8);
    std::string record;
    append_number(record, i, 8);
    append_number(record, element.size(), 8);
    append_number(record, lockstep::masked_crc32c(record), 4);
    append_number(record, lockstep::crc32c(element), 4);
    file += record;
    file += element;
  }
  std::string tail;
  append_number(tail, file.size(), 8);
  append_number(tail, records, 8);
  append_number(tail, lockstep::masked_crc32c(tail), 4);
  return file + index + tail + "lockstep elems 1";
}

// The bytes of all values, with their dtypes, shapes and sample ids.
std::string contents(const Element& element) {
  std::string text;
  append_number(text, element.sample.epoch, 8);
  append_number(text, element.sample.number, 8);
  for (const lockstep::Tensor& tensor : element) {
    append_number(text, static_cast<std::uint64_t>(tensor.dtype()), 1);
    for (const std::int64_t extent : tensor.shape().dims()) {
      append_number(text, static_cast<std::uint64_t>(extent), 8);
    }
    for (const std::int64_t stride : tensor.shape().strides()) {
      append_number(text, static_cast<std::uint64_t>(stride), 8);
    }
    text.append(reinterpret_cast<const char*>(tensor.raw()), tensor.bytes());
  }
  return text;
}

std::optional<std::string> read(ElementFile::Reader& reader, std::int64_t number) {
  try {
    return contents(reader.read(number));
  } catch (const lockstep::DataError&) {
    return std::nullopt;
  }
}

// `whole`: the index is correct, so the order in which records are read must not matter.
void read_all(const std::string& bytes, bool whole) {
  try {
    const auto file = std::make_shared<const ElementFile>(lockstep::view_bytes(bytes, "input"));
    ElementFile::Reader forwards(file);
    std::vector<std::optional<std::string>> elements;
    for (std::int64_t i = 0; i < file->count(); ++i) elements.push_back(read(forwards, i));
    ElementFile::Reader backwards(file);
    for (std::int64_t i = file->count(); i-- > 0;) {
      const auto element = read(backwards, i);
      if (whole) expect(element == elements[static_cast<std::size_t>(i)]);
    }
  } catch (const lockstep::DataError&) {
    expect(!whole);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t records = data[0] % 4;
  if (records == 0) {
    read_all(bytes, false);
  } else {
    read_all(file_of(bytes, records), true);
  }
  return 0;
}
