#include "lockstep/cluster/resolvers/node_list.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "lockstep/base/error.h"
#include "lockstep/cluster/in_quotes.h"
#include "lockstep/cluster/resolvers/launched.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxDigits = 18;  // fits 64 bits
constexpr std::size_t kMaxName = 255;

struct Range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::size_t width = 0;
};

// A part of a name: text, or the ranges between brackets.
struct Segment {
  std::string text = {};
  std::vector<Range> ranges = {};
};

// Reads a list from left to right.
class ListReader {
 public:
  ListReader(std::string_view text, std::string_view what) : text_(text), what_(what) {}

  bool at_end() const { return place_ == text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[place_]; }
  bool take(char c) {
    if (peek() != c || at_end()) return false;
    ++place_;
    return true;
  }
  void expect(char c, std::string_view why) {
    if (!take(c)) reject(why);
  }
  std::string_view take_digits() {
    const std::size_t begin = place_;
    while (peek() >= '0' && peek() <= '9') ++place_;
    return text_.substr(begin, place_ - begin);
  }
  std::string_view take_name() {
    const std::size_t begin = place_;
    while (is_name_character(peek())) ++place_;
    return text_.substr(begin, place_ - begin);
  }
  std::uint64_t number(std::string_view digits) const {
    if (digits.empty()) reject("a number is missing");
    if (digits.size() > kMaxDigits) reject("a number has too many digits");
    std::uint64_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  }
  [[noreturn]] void reject(std::string_view why) const {
    fail<UsageError>("{}={} is not a list as Slurm writes them: {}, at character {}", what_,
                     in_quotes(text_), why, place_ + 1);
  }
  [[noreturn]] void reject_size(std::size_t most) const {
    fail<UsageError>("{}={} stands for more than {} entries: no job has so many; correct it", what_,
                     in_quotes(text_), most);
  }

 private:
  static bool is_name_character(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '.' || c == '_';
  }

  std::string_view text_;
  std::string_view what_;
  std::size_t place_ = 0;
};

Range read_range(ListReader& reader) {
  const std::string_view first = reader.take_digits();
  Range range{.first = reader.number(first), .width = first.size()};
  range.last = range.first;
  if (reader.take('-')) range.last = reader.number(reader.take_digits());
  if (range.last < range.first) reader.reject("a range ends before it begins");
  return range;
}

// One name with its brackets.
std::vector<Segment> read_segments(ListReader& reader) {
  std::vector<Segment> segments;
  while (!reader.at_end() && reader.peek() != ',') {
    Segment segment{.text = std::string(reader.take_name())};
    if (segment.text.empty()) {
      reader.expect('[', "a name has a character that no name has");
      do segment.ranges.push_back(read_range(reader));
      while (reader.take(','));
      reader.expect(']', "a bracket does not close");
    }
    segments.push_back(std::move(segment));
  }
  if (segments.empty()) reader.reject("a name is missing");
  if (segments.front().text.starts_with('-')) reader.reject("a name begins with '-'");
  return segments;
}

// How many names the segments stand for; more than `most` is most + 1.
std::uint64_t count_names(const std::vector<Segment>& segments, std::uint64_t most) {
  std::uint64_t names = 1;
  for (const Segment& segment : segments) {
    if (segment.ranges.empty()) continue;
    std::uint64_t choices = 0;
    for (const Range& range : segment.ranges) {
      choices += std::min(range.last - range.first, most) + 1;  // of a few thousand ranges at most
      choices = std::min(choices, most + 1);
    }
    names = std::min(names * choices, most + 1);
  }
  return names;
}

// All names that begin with `begin` and go on with the segments from `next`.
void append_names(const std::vector<Segment>& segments, std::size_t next, const std::string& begin,
                  std::vector<std::string>& names) {
  if (next == segments.size()) {
    names.push_back(begin);
    return;
  }
  const Segment& segment = segments[next];
  if (segment.ranges.empty()) {
    append_names(segments, next + 1, begin + segment.text, names);
    return;
  }
  for (const Range& range : segment.ranges) {
    for (std::uint64_t i = range.first; i <= range.last; ++i) {
      append_names(segments, next + 1, fmt::format("{}{:0{}}", begin, i, range.width), names);
    }
  }
}

// The length of the longest name at most; also bounds the number of segments.
std::size_t longest(const std::vector<Segment>& segments) {
  std::size_t length = 0;
  for (const Segment& segment : segments) {
    length += segment.ranges.empty() ? segment.text.size() : 1;
  }
  return length;
}

}  // namespace

std::vector<std::string> expand_node_list(std::string_view text, std::string_view what) {
  ListReader reader(text, what);
  std::vector<std::string> names;
  do {
    const std::vector<Segment> segments = read_segments(reader);
    if (longest(segments) > kMaxName) reader.reject("a name is too long");
    if (count_names(segments, kMaxNodes) + names.size() > kMaxNodes) reader.reject_size(kMaxNodes);
    append_names(segments, 0, "", names);
  } while (reader.take(','));
  return names;
}

std::vector<int> expand_tasks_per_node(std::string_view text, std::string_view what) {
  ListReader reader(text, what);
  std::vector<int> tasks;
  do {
    const std::uint64_t count = reader.number(reader.take_digits());
    if (count > kMaxWorkers) reader.reject_size(kMaxWorkers);
    std::uint64_t times = 1;
    if (reader.take('(')) {
      reader.expect('x', "an 'x' is missing");
      times = reader.number(reader.take_digits());
      reader.expect(')', "a bracket does not close");
    }
    if (times > kMaxNodes - tasks.size()) reader.reject_size(kMaxNodes);
    tasks.insert(tasks.end(), times, static_cast<int>(count));
  } while (reader.take(','));
  if (!reader.at_end()) reader.reject("a comma is missing");
  return tasks;
}

}  // namespace lockstep
