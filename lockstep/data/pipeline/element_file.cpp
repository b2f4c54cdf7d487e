#include "lockstep/data/pipeline/element_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::string_view kMagic = "lockstep elems 1";
constexpr std::size_t kWord = 8;
constexpr std::size_t kChecksum = 4;
constexpr std::size_t kHeadBegin = kWord + kChecksum;
constexpr std::size_t kRecordHead = 2 * kWord + 2 * kChecksum;
constexpr std::size_t kTail = 2 * kWord + kChecksum + kMagic.size();
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kWindow = 256 << 10;
constexpr std::uint64_t kMostHead = 16 << 20;
constexpr std::uint64_t kMostAxes = 32;
constexpr std::uint64_t kMostComponents = 1 << 16;
constexpr std::uint64_t kMostDTypes = static_cast<std::uint64_t>(DType::Bool) + 1;

void append_number(std::string& bytes, std::uint64_t value, std::size_t size = kWord) {
  for (std::size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(value >> 8 * i & 0xFF));
}

std::uint64_t number_at(std::string_view bytes, std::size_t at, std::size_t size = kWord) {
  std::uint64_t value = 0;
  for (std::size_t i = size; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  }
  return value;
}

std::uint64_t checksum_at(std::string_view bytes, std::size_t at) {
  return number_at(bytes, at, kChecksum);
}

std::size_t aligned(std::size_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

std::string_view view(const std::byte* bytes, std::size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

// The fields in front of an element's values.
std::string description_of(const Element& element) {
  std::string text;
  append_number(text, element.sample.epoch);
  append_number(text, element.sample.number);
  append_number(text, element.size());
  for (const Tensor& component : element) {
    append_number(text, static_cast<std::uint64_t>(component.dtype()));
    append_number(text, static_cast<std::uint64_t>(component.shape().rank()));
    for (const std::int64_t extent : component.shape().dims()) {
      append_number(text, static_cast<std::uint64_t>(extent));
    }
  }
  return text;
}

// Parses an element; false if its fields are not valid.
class Description {
 public:
  explicit Description(std::string_view bytes) : bytes_(bytes) {}

  bool parse(Element& element, const std::shared_ptr<Buffer>& buffer) {
    std::uint64_t components = 0;
    if (!word(element.sample.epoch) || !word(element.sample.number) || !word(components) ||
        components > kMostComponents) {
      return false;
    }
    std::vector<std::pair<DType, Shape>> tensors;
    for (std::uint64_t i = 0; i < components; ++i) {
      if (!tensor(tensors)) return false;
    }
    for (auto& [dtype, shape] : tensors) {
      const std::size_t begin = aligned(at_);
      const std::size_t size = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
      if (begin > bytes_.size() || size > bytes_.size() - begin) return false;
      element.emplace_back(dtype, std::move(shape), buffer, begin);
      at_ = begin + size;
    }
    return at_ == bytes_.size();
  }

 private:
  bool word(std::uint64_t& value) {
    if (bytes_.size() - at_ < kWord) return false;
    value = number_at(bytes_, at_);
    at_ += kWord;
    return true;
  }

  bool tensor(std::vector<std::pair<DType, Shape>>& tensors) {
    std::uint64_t dtype = 0;
    std::uint64_t rank = 0;
    if (!word(dtype) || !word(rank) || dtype >= kMostDTypes || rank > kMostAxes) return false;
    std::vector<std::int64_t> dims;
    std::uint64_t elements = 1;
    for (std::uint64_t axis = 0; axis < rank; ++axis) {
      std::uint64_t extent = 0;
      if (!word(extent) || extent > std::uint64_t{1} << 40 ||
          __builtin_mul_overflow(elements, extent, &elements) || elements > bytes_.size()) {
        return false;
      }
      dims.push_back(static_cast<std::int64_t>(extent));
    }
    try {
      tensors.emplace_back(static_cast<DType>(dtype), Shape(std::move(dims)));
    } catch (const UsageError&) {
      return false;  // an extent of 0 next to extents that no tensor can have
    }
    return true;
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
};

}  // namespace

ElementFileWriter::ElementFileWriter(int descriptor, std::filesystem::path path,
                                     std::string_view head)
    : descriptor_(descriptor), path_(std::move(path)) {
  std::string begin(kMagic);
  append_number(begin, head.size());
  append_number(begin, masked_crc32c(head), kChecksum);
  put(begin);
  put(head);
}

void ElementFileWriter::append(const Element& element) {
  const std::string description = description_of(element);
  // The padding in front of each tensor's values.
  static constexpr char kZeros[kAlignment] = {};
  std::vector<std::string_view> pieces{description};
  std::size_t length = description.size();
  for (const Tensor& component : element) {
    pieces.emplace_back(kZeros, aligned(length) - length);
    pieces.push_back(view(component.raw(), component.bytes()));
    length = aligned(length) + component.bytes();
  }
  std::uint32_t checksum = 0;
  for (const std::string_view piece : pieces) checksum = crc32c(piece, checksum);
  std::string head;
  append_number(head, offsets_.size());
  append_number(head, length);
  append_number(head, masked_crc32c(head), kChecksum);
  append_number(head, checksum, kChecksum);
  offsets_.push_back(bytes());
  put(head);
  for (const std::string_view piece : pieces) put(piece);
}

void ElementFileWriter::finish() {
  const std::uint64_t index = bytes();
  std::string tail;
  for (const std::uint64_t offset : offsets_) {
    tail.clear();
    append_number(tail, offset);
    put(tail);
  }
  tail.clear();
  append_number(tail, index);
  append_number(tail, offsets_.size());
  append_number(tail, masked_crc32c(tail), kChecksum);
  tail += kMagic;
  put(tail);
  flush();
}

void ElementFileWriter::put(std::string_view bytes) {
  if (bytes.size() >= kWindow) {
    flush();
    write_out(bytes);
    return;
  }
  pending_ += bytes;
  if (pending_.size() >= kWindow) flush();
}

void ElementFileWriter::flush() {
  write_out(pending_);
  pending_.clear();
}

void ElementFileWriter::write_out(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      fail<DataError>("{}: cannot be written after {} elements: {}", path_.string(), count(),
                      std::generic_category().message(errno));
    }
    written_ += static_cast<std::uint64_t>(written);
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

ElementFile::ElementFile(std::unique_ptr<RandomAccess> bytes) : bytes_(std::move(bytes)) {
  const std::uint64_t size = bytes_->size();
  const auto expect = [&](bool holds, const char* what) {
    if (!holds) {
      fail<DataError>("{}: {}; delete it, and the program that wrote it writes it again", name(),
                      what);
    }
  };
  const auto read = [&](std::uint64_t offset, std::uint64_t length) {
    std::string bytes(static_cast<std::size_t>(length), '\0');
    expect(bytes_->read(offset, bytes) == bytes.size(), "ended while it was read");
    return bytes;
  };
  expect(size >= kMagic.size() + kHeadBegin + kTail, "is too short for an element file");
  const std::string begin = read(0, kMagic.size() + kHeadBegin);
  expect(begin.starts_with(kMagic), "is not an element file of this version");
  const std::uint64_t head_length = number_at(begin, kMagic.size());
  const std::uint64_t most = std::min<std::uint64_t>(kMostHead, size - begin.size() - kTail);
  expect(head_length <= most, "its head is damaged");
  head_ = read(begin.size(), head_length);
  expect(checksum_at(begin, kMagic.size() + kWord) == masked_crc32c(head_), "its head is damaged");
  records_offset_ = begin.size() + head_length;

  const std::string tail = read(size - kTail, kTail);
  expect(tail.ends_with(kMagic), "is cut off: its end is missing");
  expect(checksum_at(tail, 2 * kWord) == masked_crc32c(std::string_view(tail).substr(0, 2 * kWord)),
         "its tail is damaged");
  index_offset_ = number_at(tail, 0);
  const std::uint64_t count = number_at(tail, kWord);
  expect(index_offset_ >= records_offset_ && index_offset_ <= size - kTail &&
             count == (size - kTail - index_offset_) / kWord &&
             (size - kTail - index_offset_) % kWord == 0,
         "its index is damaged");
  count_ = static_cast<std::int64_t>(count);
}

std::string_view ElementFile::Reader::bytes(std::uint64_t offset, std::uint64_t length,
                                            std::int64_t record) {
  const bool inside = offset >= window_offset_ && offset <= window_offset_ + window_.size() &&
                      length <= window_offset_ + window_.size() - offset;
  if (!inside) {
    window_.resize(kWindow);
    window_offset_ = offset;
    window_.resize(file_->bytes_->read(offset, window_));
  }
  if (window_offset_ + window_.size() - offset < length) {
    fail<DataError>("{}: record {}: the file ends inside it", file_->name(), record);
  }
  return std::string_view(window_).substr(static_cast<std::size_t>(offset - window_offset_),
                                          static_cast<std::size_t>(length));
}

std::uint64_t ElementFile::Reader::offset_of(std::int64_t number) {
  if (number == next_) return next_offset_;
  if (number == 0) return file_->records_offset_;
  std::string word(kWord, '\0');
  const std::uint64_t place = file_->index_offset_ + kWord * static_cast<std::uint64_t>(number);
  if (file_->bytes_->read(place, word) != kWord) {
    fail<DataError>("{}: record {}: the file ends before its index", file_->name(), number);
  }
  return number_at(word, 0);
}

Element ElementFile::Reader::read(std::int64_t number) {
  ensure(number >= 0 && number < file_->count(), "record {} of {} was requested", number,
         file_->count());
  const auto expect = [&](bool holds, const char* what) {
    if (!holds) {
      fail<DataError>(
          "{}: record {}: {}; delete the file, and the program that wrote it writes it again",
          file_->name(), number, what);
    }
  };
  const std::uint64_t offset = offset_of(number);
  const std::uint64_t end = file_->index_offset_;
  expect(offset >= file_->records_offset_ && offset <= end && end - offset >= kRecordHead,
         "the index points to a wrong place");
  const std::string_view head = bytes(offset, kRecordHead, number);
  const std::uint64_t length = number_at(head, kWord);
  const std::uint64_t checksum = checksum_at(head, 2 * kWord + kChecksum);
  expect(checksum_at(head, 2 * kWord) == masked_crc32c(head.substr(0, 2 * kWord)) &&
             number_at(head, 0) == static_cast<std::uint64_t>(number) &&
             length <= end - offset - kRecordHead,
         "its head is damaged");

  const std::uint64_t from = offset + kRecordHead;
  std::shared_ptr<Buffer> buffer = pool_.take(static_cast<std::size_t>(length));
  if (length < kWindow / 2) {
    const std::string_view record = bytes(from, length, number);
    std::copy(record.begin(), record.end(), reinterpret_cast<char*>(buffer->data()));
  } else {
    const std::span<char> to(reinterpret_cast<char*>(buffer->data()),
                             static_cast<std::size_t>(length));
    expect(file_->bytes_->read(from, to) == length, "the file ends inside it");
  }
  const std::string_view record = view(buffer->data(), static_cast<std::size_t>(length));
  expect(crc32c(record) == checksum, "its checksum does not match");
  Element element;
  expect(Description(record).parse(element, buffer), "its fields do not match its length");
  element.sample.file = name_;
  element.sample.record = number;
  next_ = number + 1;
  next_offset_ = from + length;
  return element;
}

}  // namespace lockstep
