#include "lockstep/data/sources/text.h"

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/position.h"

namespace lockstep {

void skip_byte_order_mark(ByteStream& stream) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (stream.peek(kMark.size()).starts_with(kMark)) stream.consume(kMark.size());
}

LineReader::LineReader(const std::filesystem::path& file, TextOptions options)
    : LineReader(open_file(file), options) {}

LineReader::LineReader(std::unique_ptr<RandomAccess> file, TextOptions options)
    : options_(options), stream_(std::move(file), {.buffer = options.buffer}) {
  skip_byte_order_mark(stream_);
}

std::optional<std::string_view> LineReader::next() {
  if (ended_) return std::nullopt;
  try {
    const std::optional<std::string_view> line = stream_.line(options_.longest_line);
    if (line) ++line_;
    return line;
  } catch (const DataError& error) {
    ended_ = true;
    fail<DataError>("{} (line {})", error.what(), line_ + 1);
  }
}

std::int64_t LineReader::skip(std::int64_t count) {
  std::int64_t passed = 0;
  while (passed < count && next()) ++passed;
  return passed;
}

std::string LineReader::save() const {
  PositionWriter state;
  state.word(static_cast<std::uint64_t>(line_));
  state.word(ended_ ? 1 : 0);
  state.text(stream_.save());
  return state.bytes();
}

void LineReader::restore(std::string_view bytes) {
  PositionReader state(bytes);
  const auto line = static_cast<std::int64_t>(state.word());
  const bool ended = state.word() != 0;
  const std::string_view stream = state.text();
  state.expect_end();
  stream_.restore(stream);
  line_ = line;
  ended_ = ended;
}

}  // namespace lockstep
