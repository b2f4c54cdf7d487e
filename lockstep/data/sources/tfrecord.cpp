#include "lockstep/data/sources/tfrecord.h"

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/position.h"

namespace lockstep {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kChecksumBytes = 4;
constexpr std::size_t kHeaderBytes = kLengthBytes + kChecksumBytes;

template <class T>
T little_endian(std::string_view bytes) {
  T value = 0;
  for (std::size_t i = sizeof(T); i-- > 0;) {
    value = static_cast<T>(value << 8 | static_cast<unsigned char>(bytes[i]));
  }
  return value;
}

bool is_header(std::string_view header) {
  return header.size() >= kHeaderBytes &&
         little_endian<std::uint32_t>(header.substr(kLengthBytes)) ==
             masked_crc32c(header.substr(0, kLengthBytes));
}

// The checksum after the length identifies a plain file whose first length happens to look like the
// magic number of gzip.
ByteStreamOptions stream_options(const RandomAccess& file, const TFRecordOptions& options) {
  char bytes[kHeaderBytes];
  const std::string_view header(bytes, file.read(0, bytes));
  return {.buffer = options.buffer,
          .compression = is_header(header) ? Compression::None : Compression::Auto};
}

}  // namespace

TFRecordReader::TFRecordReader(const std::filesystem::path& file, TFRecordOptions options)
    : TFRecordReader(open_file(file), options) {}

TFRecordReader::TFRecordReader(std::unique_ptr<RandomAccess> file, TFRecordOptions options)
    : options_(options), stream_([&] {
        const ByteStreamOptions how = stream_options(*file, options);
        return ByteStream(std::move(file), how);
      }()) {}

std::string TFRecordReader::place(std::uint64_t begin) const {
  return fmt::format("{}: record {} at {}byte {}", name(), record_,
                     stream_.compressed() ? "uncompressed " : "", begin);
}

// After this there is no next record.
void TFRecordReader::end(const std::string& why) {
  ended_ = true;
  throw DataError(why);
}

void TFRecordReader::end_cut_short(std::uint64_t begin, std::uint64_t length, std::uint64_t left) {
  end(fmt::format("{}: cut short: its {} bytes and their checksum do not fit in the {} left",
                  place(begin), length, left));
}

std::string_view TFRecordReader::peek(std::size_t count) {
  try {
    return stream_.peek(count);
  } catch (const DataError& error) {
    end(fmt::format("{} (in record {})", error.what(), record_));
  }
}

// Reads a header; nullopt at the end.
std::optional<std::uint64_t> TFRecordReader::next_length() {
  const std::uint64_t begin = stream_.tell();
  const std::string_view header = peek(kHeaderBytes);
  if (header.empty()) return std::nullopt;
  if (header.size() < kHeaderBytes) {
    end(fmt::format("{}: cut short: {} bytes are left, but its header has {}", place(begin),
                    header.size(), kHeaderBytes));
  }
  const auto length = little_endian<std::uint64_t>(header);
  const auto stored = little_endian<std::uint32_t>(header.substr(kLengthBytes));
  const std::uint32_t computed = masked_crc32c(header.substr(0, kLengthBytes));
  if (stored != computed) {
    end(
        fmt::format("{}: the checksum of its length {} is {:#010x}, but the file has {:#010x}: "
                    "damaged, or not a TFRecord file",
                    place(begin), length, computed, stored));
  }
  stream_.consume(kHeaderBytes);
  const std::uint64_t most = stream_.most_left();
  if (length > most || most - length < kChecksumBytes) end_cut_short(begin, length, most);
  return length;
}

std::optional<std::string_view> TFRecordReader::next() {
  if (ended_) return std::nullopt;
  const std::uint64_t begin = stream_.tell();
  const std::optional<std::uint64_t> length = next_length();
  if (!length) return std::nullopt;
  const auto size = static_cast<std::size_t>(*length);
  const std::string_view bytes = peek(size + kChecksumBytes);
  if (bytes.size() < size + kChecksumBytes) end_cut_short(begin, size, bytes.size());
  stream_.consume(size + kChecksumBytes);
  const std::string_view data = bytes.substr(0, size);
  if (options_.check_data) {
    const auto stored = little_endian<std::uint32_t>(bytes.substr(size));
    const std::uint32_t computed = masked_crc32c(data);
    if (stored != computed) {
      const std::string where = place(begin);
      ++record_;
      fail<DataError>("{}: the checksum of its {} bytes is {:#010x}, but the file has {:#010x}",
                      where, size, computed, stored);
    }
  }
  ++record_;
  return data;
}

std::int64_t TFRecordReader::skip(std::int64_t count) {
  std::int64_t passed = 0;
  for (; passed < count && !ended_; ++passed) {
    const std::uint64_t begin = stream_.tell();
    const std::optional<std::uint64_t> length = next_length();
    if (!length) break;
    const std::uint64_t size = *length + kChecksumBytes;
    std::uint64_t found = 0;
    try {
      found = stream_.skip(size);
    } catch (const DataError& error) {
      end(fmt::format("{} (in record {})", error.what(), record_));
    }
    if (found < size) end_cut_short(begin, *length, found);
    ++record_;
  }
  return passed;
}

std::string TFRecordReader::save() const {
  PositionWriter state;
  state.word(static_cast<std::uint64_t>(record_));
  state.word(ended_ ? 1 : 0);
  state.text(stream_.save());
  return state.bytes();
}

void TFRecordReader::restore(std::string_view bytes) {
  PositionReader state(bytes);
  const auto record = static_cast<std::int64_t>(state.word());
  const bool ended = state.word() != 0;
  const std::string_view stream = state.text();
  state.expect_end();
  stream_.restore(stream);
  record_ = record;
  ended_ = ended;
}

}  // namespace lockstep
