#include "lockstep/data/sources/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::size_t kInput = 64 << 10;  // bytes read from the file at once
constexpr std::uint64_t kCheckpointSpacing = 128 << 10;
constexpr std::size_t kWindow = 32 << 10;
constexpr int kRawDeflate = -15;  // the largest window, without a header, which is parsed here

// Bits of the header's flags.
constexpr unsigned kHasHeaderCrc = 2;
constexpr unsigned kHasExtra = 4;
constexpr unsigned kHasName = 8;
constexpr unsigned kHasComment = 16;
constexpr unsigned kReserved = 0xE0;

// Bits of z_stream::data_type.
constexpr int kUnusedBits = 7;
constexpr int kInLastBlock = 64;
constexpr int kAtBlockBoundary = 128;

}  // namespace

bool is_gzip(std::string_view bytes) {
  return bytes.starts_with("\x1F\x8B");
}

struct GzipDecoder::Inflater {
  explicit Inflater(const std::string& name) {
    if (inflateInit2(&stream, kRawDeflate) != Z_OK) {
      fail<DataError>("{}: zlib cannot be initialised", name);
    }
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  z_stream stream{};
};

GzipDecoder::GzipDecoder(const RandomAccess& file)
    : GzipDecoder(file, std::make_shared<GzipCheckpoint>()) {}

GzipDecoder::GzipDecoder(const RandomAccess& file, std::shared_ptr<const GzipCheckpoint> from)
    : file_(file),
      inflater_(std::make_unique<Inflater>(file.name())),
      buffer_(std::make_unique_for_overwrite<char[]>(kInput)),
      input_end_(from->offset),
      in_member_(from->in_member),
      crc_(from->crc),
      length_(from->length),
      position_(from->position),
      checkpoint_(std::move(from)) {
  const GzipCheckpoint& place = *checkpoint_;
  require(place.offset <= file.size() && place.bits >= 0 && place.bits <= kUnusedBits &&
              place.window.size() <= kWindow && (place.bits == 0 || place.offset > 0),
          "[data] {}: the saved position is damaged: it is at byte {} of {}, bit {}, with a window "
          "of {} bytes",
          file.name(), place.offset, file.size(), place.bits, place.window.size());
  if (!in_member_) return;
  if (place.bits > 0) {
    char byte = 0;
    if (file.read(place.offset - 1, {&byte, 1}) != 1) fail_cut_short();
    inflatePrime(&inflater_->stream, place.bits,
                 static_cast<unsigned char>(byte) >> (8 - place.bits));
  }
  inflateSetDictionary(&inflater_->stream, reinterpret_cast<const Bytef*>(place.window.data()),
                       static_cast<uInt>(place.window.size()));
}

GzipDecoder::~GzipDecoder() = default;

std::size_t GzipDecoder::read(std::span<char> to) {
  if (!failure_.empty()) throw DataError(failure_);
  std::size_t done = 0;
  try {
    while (done < to.size() && (in_member_ || begin_member())) inflate_into(to.subspan(done), done);
  } catch (const DataError& error) {
    failure_ = error.what();
    if (done == 0) throw;
  }
  return done;
}

void GzipDecoder::inflate_into(std::span<char> to, std::size_t& done) {
  const bool more = !input_.empty() || refill();
  z_stream& stream = inflater_->stream;
  const std::size_t room = std::min<std::size_t>(to.size(), std::numeric_limits<uInt>::max());
  stream.next_in =
      reinterpret_cast<Bytef*>(const_cast<char*>(input_.data()));  // zlib only reads it
  stream.avail_in = static_cast<uInt>(input_.size());
  stream.next_out = reinterpret_cast<Bytef*>(to.data());
  stream.avail_out = static_cast<uInt>(room);
  const bool due = position_ - checkpoint_->position >= kCheckpointSpacing;
  const int status = ::inflate(&stream, due ? Z_BLOCK : Z_NO_FLUSH);
  const std::size_t produced = room - stream.avail_out;
  input_.remove_prefix(input_.size() - stream.avail_in);
  crc_ = static_cast<std::uint32_t>(
      ::crc32_z(crc_, reinterpret_cast<const Bytef*>(to.data()), produced));
  length_ += static_cast<std::uint32_t>(produced);
  position_ += produced;
  done += produced;
  if (status == Z_STREAM_END) return end_member();
  if (status != Z_OK && status != Z_BUF_ERROR) {
    fail<DataError>("{}: byte {}: the gzip data is damaged: {}", file_.name(), offset(),
                    stream.msg != nullptr ? stream.msg : "unknown reason");
  }
  if (!more && produced == 0) fail_cut_short();
  if (due && (stream.data_type & kAtBlockBoundary) != 0 && (stream.data_type & kInLastBlock) == 0) {
    take_checkpoint();
  }
}

void GzipDecoder::take_checkpoint() {
  GzipCheckpoint place{.position = position_,
                       .offset = offset(),
                       .in_member = in_member_,
                       .bits = 0,
                       .crc = crc_,
                       .length = length_,
                       .window = {}};
  if (in_member_) {
    place.bits = inflater_->stream.data_type & kUnusedBits;
    place.window.resize(kWindow);
    auto size = static_cast<uInt>(kWindow);
    inflateGetDictionary(&inflater_->stream, reinterpret_cast<Bytef*>(place.window.data()), &size);
    place.window.resize(size);
  }
  checkpoint_ = std::make_shared<const GzipCheckpoint>(std::move(place));
}

// Reads the header of a member; false at the end of the file.
bool GzipDecoder::begin_member() {
  if (input_.empty() && !refill()) {
    if (offset() == 0) fail_cut_short();
    return false;
  }
  if (position_ - checkpoint_->position >= kCheckpointSpacing) take_checkpoint();
  const std::uint64_t begin = offset();
  header_crc_ = 0;
  const unsigned first = next_byte();
  if (first != 0x1F || (offset() < file_.size() && next_byte() != 0x8B)) {
    if (begin == 0) fail<DataError>("{}: is not a gzip file", file_.name());
    fail<DataError>("{}: byte {}: {} bytes follow the end of the gzip data", file_.name(), begin,
                    file_.size() - begin);
  }
  const unsigned method = next_byte();
  const unsigned flags = next_byte();
  if (method != Z_DEFLATED || (flags & kReserved) != 0) {
    fail<DataError>("{}: byte {}: the gzip data is damaged: method {}, flags {:#04x}", file_.name(),
                    begin, method, flags);
  }
  for (int i = 0; i < 6; ++i) next_byte();  // time, level, operating system
  if ((flags & kHasExtra) != 0) {
    const unsigned low = next_byte();
    for (unsigned count = low | static_cast<unsigned>(next_byte()) << 8; count > 0; --count) {
      next_byte();
    }
  }
  if ((flags & kHasName) != 0) skip_text();
  if ((flags & kHasComment) != 0) skip_text();
  if ((flags & kHasHeaderCrc) != 0) {
    const unsigned expected = header_crc_ & 0xFFFF;
    const unsigned low = next_byte();
    const unsigned found = low | static_cast<unsigned>(next_byte()) << 8;
    if (found != expected) {
      fail<DataError>(
          "{}: byte {}: the gzip data is damaged: the header's checksum is {:#06x}, not {:#06x}",
          file_.name(), begin, expected, found);
    }
  }
  inflateReset(&inflater_->stream);
  crc_ = 0;
  length_ = 0;
  in_member_ = true;
  return true;
}

void GzipDecoder::end_member() {
  const std::uint64_t begin = offset();
  const std::uint32_t crc = next_word();
  const std::uint32_t length = next_word();
  if (crc != crc_ || length != length_) {
    fail<DataError>(
        "{}: byte {}: the gzip data is damaged: {} bytes with the checksum {:#010x}, but the "
        "trailer says {} (modulo 2^32) and {:#010x}",
        file_.name(), begin, length_, crc_, length, crc);
  }
  in_member_ = false;
}

bool GzipDecoder::refill() {
  const std::size_t got = file_.read(input_end_, {buffer_.get(), kInput});
  input_end_ += got;
  input_ = {buffer_.get(), got};
  return got > 0;
}

unsigned char GzipDecoder::next_byte() {
  if (input_.empty() && !refill()) fail_cut_short();
  const auto byte = static_cast<unsigned char>(input_.front());
  input_.remove_prefix(1);
  header_crc_ = static_cast<std::uint32_t>(::crc32(header_crc_, &byte, 1));
  return byte;
}

std::uint32_t GzipDecoder::next_word() {
  std::uint32_t word = 0;
  for (int shift = 0; shift < 32; shift += 8) word |= std::uint32_t{next_byte()} << shift;
  return word;
}

void GzipDecoder::skip_text() {
  while (next_byte() != 0) {
  }
}

void GzipDecoder::fail_cut_short() const {
  fail<DataError>("{}: byte {}: the gzip data is cut short", file_.name(), offset());
}

}  // namespace lockstep
