#include <zlib.h>

#include <span>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/data/sources/tfrecord.h"

namespace lockstep {
namespace {

constexpr std::size_t kPending = 256 << 10;  // bytes collected before they are written
constexpr int kGzipWindow = 15 + 16;         // the largest window, with gzip's header and trailer
constexpr int kMemory = 8;                   // zlib's default

template <class T>
void append_little_endian(std::string& to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) to += static_cast<char>(value >> (8 * i) & 0xFF);
}

void append(FileWriter& file, std::string_view bytes) {
  file.append(std::as_bytes(std::span(bytes)));
}

}  // namespace

void append_tfrecord(std::string& to, std::string_view record) {
  const std::size_t begin = to.size();
  append_little_endian(to, static_cast<std::uint64_t>(record.size()));
  append_little_endian(to, masked_crc32c(std::string_view(to).substr(begin)));
  to += record;
  append_little_endian(to, masked_crc32c(record));
}

class TFRecordWriter::Deflater {
 public:
  explicit Deflater(int level) {
    require(level >= 1 && level <= 9, "[tfrecord] .level must be from 1 to 9, not {}", level);
    ensure(
        deflateInit2(&stream_, level, Z_DEFLATED, kGzipWindow, kMemory, Z_DEFAULT_STRATEGY) == Z_OK,
        "[tfrecord] zlib cannot be initialised");
  }
  ~Deflater() { deflateEnd(&stream_); }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;

  // Compresses bytes into the file; they are the last ones if `flush` is Z_FINISH.
  void write(std::string_view bytes, int flush, FileWriter& file) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    std::string out(kPending, '\0');
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(out.data());
      stream_.avail_out = static_cast<uInt>(out.size());
      deflate(&stream_, flush);
      append(file, std::string_view(out).substr(0, out.size() - stream_.avail_out));
    } while (stream_.avail_out == 0);
  }

 private:
  z_stream stream_{};
};

TFRecordWriter::TFRecordWriter(const std::filesystem::path& file, TFRecordWriterOptions options)
    : file_(file) {
  if (options.compression == Compression::Gzip ||
      (options.compression == Compression::Auto && file.extension() == ".gz")) {
    deflater_ = std::make_unique<Deflater>(options.level);
  }
}

TFRecordWriter::~TFRecordWriter() = default;
TFRecordWriter::TFRecordWriter(TFRecordWriter&&) noexcept = default;
TFRecordWriter& TFRecordWriter::operator=(TFRecordWriter&&) noexcept = default;

void TFRecordWriter::write(std::string_view record) {
  append_tfrecord(pending_, record);
  ++records_;
  if (pending_.size() >= kPending) flush();
}

void TFRecordWriter::flush() {
  std::string_view rest = pending_;
  if (deflater_ == nullptr) {
    append(file_, rest);
  } else {
    constexpr std::size_t kMost = std::size_t{1} << 30;  // zlib's counts have 32 bits
    for (; !rest.empty(); rest.remove_prefix(std::min(kMost, rest.size()))) {
      deflater_->write(rest.substr(0, kMost), Z_NO_FLUSH, file_);
    }
  }
  pending_.clear();
}

void TFRecordWriter::close() {
  flush();
  if (deflater_ != nullptr) deflater_->write({}, Z_FINISH, file_);
  file_.commit();
}

}  // namespace lockstep
