#include "lockstep/data/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep {
namespace {

constexpr std::size_t kLeastMember = 18;  // bytes of header and trailer
constexpr std::size_t kUsualRatio = 16;   // more is believed only when it is seen
constexpr int kGzipWindow = 15 + 16;      // the largest window, with gzip's header and checksum

class Inflater {
 public:
  Inflater(std::span<const std::byte> bytes, const std::string& name) : name_(name), rest_(bytes) {
    if (inflateInit2(&stream_, kGzipWindow) != Z_OK) {
      fail<DataError>("{}: zlib cannot be started", name_);
    }
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  // Fills what it can of `to`; fewer bytes at the end alone.
  std::size_t read(std::span<std::byte> to) {
    std::size_t done = 0;
    while (done < to.size() && !ended_) {
      constexpr std::size_t kMost = std::numeric_limits<uInt>::max();
      const std::size_t in = std::min(rest_.size(), kMost);
      const std::size_t out = std::min(to.size() - done, kMost);
      stream_.next_in =
          const_cast<Bytef*>(reinterpret_cast<const Bytef*>(rest_.data()));  // zlib only reads it
      stream_.avail_in = static_cast<uInt>(in);
      stream_.next_out = reinterpret_cast<Bytef*>(to.data() + done);
      stream_.avail_out = static_cast<uInt>(out);
      const int status = inflate(&stream_, Z_NO_FLUSH);
      rest_ = rest_.subspan(in - stream_.avail_in);
      done += out - stream_.avail_out;
      if (status == Z_STREAM_END) {
        next_member();
      } else if (status == Z_BUF_ERROR || (status == Z_OK && rest_.empty() && done < to.size())) {
        fail<DataError>("{}: the gzip data is cut short", name_);
      } else if (status != Z_OK) {
        fail<DataError>("{}: the gzip data is damaged: {}", name_,
                        stream_.msg != nullptr ? stream_.msg : "unknown reason");
      }
    }
    return done;
  }

 private:
  void next_member() {
    ended_ = rest_.empty();
    if (ended_) return;
    if (!is_gzip(rest_)) {
      fail<DataError>("{}: {} bytes follow the end of the gzip data", name_, rest_.size());
    }
    inflateReset(&stream_);
  }

  const std::string& name_;
  std::span<const std::byte> rest_;
  z_stream stream_{};
  bool ended_ = false;
};

// The last member's length modulo 2^32, by its own account: a first guess.
std::size_t guessed_size(std::span<const std::byte> bytes) {
  std::size_t size = 0;
  for (std::size_t i = 1; i <= 4; ++i) {
    size = size << 8 | std::to_integer<std::size_t>(bytes[bytes.size() - i]);
  }
  return std::min(size, bytes.size() * kUsualRatio);
}

}  // namespace

bool is_gzip(std::span<const std::byte> bytes) {
  return bytes.size() >= 2 && bytes[0] == std::byte{0x1F} && bytes[1] == std::byte{0x8B};
}

Unzipped unzip(std::span<const std::byte> bytes, const std::string& name) {
  if (bytes.size() < kLeastMember) fail<DataError>("{}: the gzip data is cut short", name);
  Inflater inflater(bytes, name);
  // One byte more than expected, so that a right guess meets the end in the first read.
  std::shared_ptr<Buffer> buffer = host().allocate(guessed_size(bytes) + 1);
  std::size_t size = inflater.read({buffer->data(), buffer->bytes()});
  while (size == buffer->bytes()) {
    std::shared_ptr<Buffer> larger = host().allocate(2 * buffer->bytes());
    std::memcpy(larger->data(), buffer->data(), size);
    buffer = std::move(larger);
    size += inflater.read({buffer->data() + size, buffer->bytes() - size});
  }
  return {std::move(buffer), size};
}

}  // namespace lockstep
