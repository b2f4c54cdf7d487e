#include "lockstep/data/sources/byte_stream.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/position.h"

namespace lockstep {
namespace {

constexpr std::size_t kLeastAhead = 4 << 10;
constexpr std::uint64_t kPlain = 0;
constexpr std::uint64_t kGzip = 1;

bool begins_as_gzip(const RandomAccess& file) {
  char magic[2];
  return is_gzip({magic, file.read(0, magic)});
}

// Inflates up to a position; false if the data ends earlier.
bool advance(GzipDecoder& decoder, std::uint64_t position) {
  std::string passed;
  while (decoder.position() < position) {
    passed.resize(
        static_cast<std::size_t>(std::min<std::uint64_t>(position - decoder.position(), 64 << 10)));
    if (decoder.read(passed) == 0) return false;
  }
  return true;
}

}  // namespace

ByteStream::ByteStream(const std::filesystem::path& file, ByteStreamOptions options)
    : ByteStream(open_file(file), options) {}

ByteStream::ByteStream(std::unique_ptr<RandomAccess> file, ByteStreamOptions options)
    : file_(std::move(file)), capacity_(std::max(options.buffer, kLeastAhead)), ahead_(capacity_) {
  buffer_ = std::make_unique_for_overwrite<char[]>(capacity_);
  if (options.compression == Compression::Gzip ||
      (options.compression == Compression::Auto && begins_as_gzip(*file_))) {
    decoder_ = std::make_unique<GzipDecoder>(*file_);
    checkpoint_ = decoder_->checkpoint();
  }
}

std::uint64_t ByteStream::most_left() const {
  const std::uint64_t most = decoder_ != nullptr ? file_->size() * kMostInflation : file_->size();
  return most > tell() ? most - tell() : 0;
}

std::string_view ByteStream::peek(std::size_t count) {
  if (end_ - begin_ < count) append(count - (end_ - begin_));
  return {buffer_.get() + begin_, end_ - begin_};
}

void ByteStream::consume(std::size_t count) {
  ensure(count <= end_ - begin_, "[data] {} bytes consumed, of {} buffered", count, end_ - begin_);
  begin_ += count;
}

// Buffers `least` more bytes, or all that are left. The buffer grows as bytes arrive, so that a
// wrong length cannot take more memory than the file has data.
void ByteStream::append(std::size_t least) {
  if (decoder_ != nullptr && decoder_->checkpoint()->position <= tell()) {
    checkpoint_ = decoder_->checkpoint();
  }
  if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  const std::size_t wanted = end_ + least;
  while (end_ < wanted) {
    if (end_ == capacity_) {
      auto larger = std::make_unique_for_overwrite<char[]>(2 * capacity_);
      std::memcpy(larger.get(), buffer_.get(), end_);
      buffer_ = std::move(larger);
      capacity_ *= 2;
    }
    const std::size_t room = std::min(capacity_ - end_, std::max(ahead_, wanted - end_));
    const std::size_t got = read_below({buffer_.get() + end_, room});
    end_ += got;
    if (got == 0) return;
    ahead_ = std::min(2 * ahead_, capacity_);
  }
}

// Reads the bytes after the buffered ones; returns 0 only at the end.
std::size_t ByteStream::read_below(std::span<char> to) {
  const std::size_t got = decoder_ != nullptr ? decoder_->read(to) : file_->read(next_, to);
  next_ += got;
  return got;
}

std::size_t ByteStream::read(std::span<char> to) {
  std::size_t done = 0;
  while (done < to.size()) {
    if (begin_ == end_ && to.size() - done >= capacity_) {
      if (decoder_ != nullptr) checkpoint_ = decoder_->checkpoint();
      begin_ = end_ = 0;
      const std::size_t got = read_below(to.subspan(done));
      if (got == 0) break;
      done += got;
      continue;
    }
    const std::string_view window = peek(1);
    if (window.empty()) break;
    const std::size_t count = std::min(window.size(), to.size() - done);
    std::memcpy(to.data() + done, window.data(), count);
    consume(count);
    done += count;
  }
  return done;
}

std::uint64_t ByteStream::skip(std::uint64_t count) {
  std::uint64_t passed = std::min<std::uint64_t>(count, end_ - begin_);
  begin_ += static_cast<std::size_t>(passed);
  if (passed == count) return passed;
  if (decoder_ == nullptr) {
    const std::uint64_t left = file_->size() > next_ ? file_->size() - next_ : 0;
    const std::uint64_t jump = std::min(count - passed, left);
    go_to(nullptr, next_ + jump);
    return passed + jump;
  }
  while (passed < count) {
    const std::string_view window = peek(1);
    if (window.empty()) break;
    const auto part =
        static_cast<std::size_t>(std::min<std::uint64_t>(window.size(), count - passed));
    consume(part);
    passed += part;
  }
  return passed;
}

std::optional<std::string_view> ByteStream::line(std::size_t longest) {
  std::size_t searched = 0;
  for (;;) {
    const std::string_view window = peek(searched + 1);
    const std::size_t found = window.find('\n', searched);
    const bool last = window.size() == searched;
    if (found == std::string_view::npos && last && window.empty()) return std::nullopt;
    const std::size_t size = std::min(found, window.size());
    if (size > longest) {
      fail<DataError>("{}: byte {}: a line of more than {} bytes", name(), tell(), longest);
    }
    if (found != std::string_view::npos || last) {
      consume(found != std::string_view::npos ? size + 1 : size);
      std::string_view text = window.substr(0, size);
      if (text.ends_with('\r')) text.remove_suffix(1);
      return text;
    }
    searched = window.size();
  }
}

// Drops the buffer and continues at `next`.
void ByteStream::go_to(std::unique_ptr<GzipDecoder> decoder, std::uint64_t next) {
  if (decoder != nullptr) {
    checkpoint_ = decoder->checkpoint();
    decoder_ = std::move(decoder);
  }
  begin_ = end_ = 0;
  next_ = next;
  ahead_ = kLeastAhead;
}

void ByteStream::seek(std::uint64_t position) {
  const std::uint64_t buffered = next_ - end_;  // position of the buffer's first byte
  if (position >= buffered && position <= next_) {
    begin_ = static_cast<std::size_t>(position - buffered);
    return;
  }
  bool reached = true;
  if (decoder_ == nullptr) {
    reached = position <= file_->size();
    if (reached) go_to(nullptr, position);
  } else if (position > next_) {
    reached = skip(position - tell()) > 0 && tell() == position;
  } else {
    auto decoder = checkpoint_->position <= position
                       ? std::make_unique<GzipDecoder>(*file_, checkpoint_)
                       : std::make_unique<GzipDecoder>(*file_);
    reached = advance(*decoder, position);
    if (reached) go_to(std::move(decoder), position);
  }
  if (!reached) fail<DataError>("{}: byte {} is beyond the end", name(), position);
}

std::string ByteStream::save() const {
  PositionWriter state;
  state.word(decoder_ != nullptr ? kGzip : kPlain);
  state.word(file_->size());
  state.word(tell());
  if (decoder_ != nullptr) {
    const GzipCheckpoint& last = *decoder_->checkpoint();
    const GzipCheckpoint& place = last.position <= tell() ? last : *checkpoint_;
    state.word(place.position);
    state.word(place.offset);
    state.word(place.in_member ? 1 : 0);
    state.word(static_cast<std::uint64_t>(place.bits));
    state.word(place.crc);
    state.word(place.length);
    state.text(place.window);
  }
  return state.bytes();
}

void ByteStream::restore(std::string_view bytes) {
  PositionReader state(bytes);
  const std::uint64_t kind = state.word();
  const std::uint64_t size = state.word();
  const std::uint64_t position = state.word();
  if (size != file_->size() || kind != (decoder_ != nullptr ? kGzip : kPlain)) {
    fail<DataError>("{}: has {} bytes, but had {} when the position was saved; it must not change",
                    name(), file_->size(), size);
  }
  if (kind == kPlain) {
    state.expect_end();
    require(position <= size, "[data] {}: the saved position is damaged: byte {} of {}", name(),
            position, size);
    return go_to(nullptr, position);
  }
  auto place = std::make_shared<GzipCheckpoint>();
  place->position = state.word();
  place->offset = state.word();
  place->in_member = state.count(1) != 0;
  place->bits = static_cast<int>(state.count(7));
  place->crc = static_cast<std::uint32_t>(state.word());
  place->length = static_cast<std::uint32_t>(state.word());
  place->window = state.text();
  state.expect_end();
  require(place->position <= position && position <= file_->size() * kMostInflation,
          "[data] {}: the saved position is damaged: byte {} from byte {}", name(), position,
          place->position);
  auto decoder = std::make_unique<GzipDecoder>(*file_, std::move(place));
  if (!advance(*decoder, position)) {
    fail<DataError>("{}: ends before byte {}, where the position was saved", name(), position);
  }
  go_to(std::move(decoder), position);
}

}  // namespace lockstep
