#include "lockstep/cli/replica_list.h"

#include <charconv>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = text.find(',', begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return parts;
    begin = end + 1;
  }
}

}  // namespace

std::vector<int> parse_replica_list(const std::string& flag, const std::string& text) {
  std::vector<int> counts;
  bool doubles = false;
  for (const std::string& part : split(text)) {
    if (part == "…" || part == "..." || part == "..") {
      require(!counts.empty() && !doubles,
              "{} {}: '{}' stands for doubling between two numbers, as in 1,…,64", flag, text,
              part);
      doubles = true;
      continue;
    }
    int count = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), count);
    require(error == std::errc() && end == part.data() + part.size() && count >= 1 &&
                count <= kMostSimulated,
            "{} {}: '{}' is not a whole number from 1 to {}", flag, text, part, kMostSimulated);
    if (doubles) {
      require(count > counts.back(), "{} {}: after '…' there must be more than {} replicas", flag,
              text, counts.back());
      while (counts.back() <= count / 2 && counts.back() * 2 < count) {
        counts.push_back(counts.back() * 2);
      }
      doubles = false;
    }
    counts.push_back(count);
  }
  require(!doubles, "{} {}: '…' needs a last number, as in 1,…,64", flag, text);
  return counts;
}

}  // namespace lockstep::cli
