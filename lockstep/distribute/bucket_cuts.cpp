#include "lockstep/distribute/bucket_cuts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// A list is a line "list <members>", a line for each name, and a line with the members of each
// bucket after "bucket"; the last line is "end". Line ends in names are written as "\n".
std::string escaped(const std::string& name) {
  std::string text;
  for (const char c : name) {
    if (c == '\\')
      text += "\\\\";
    else if (c == '\n')
      text += "\\n";
    else
      text += c;
  }
  return text;
}

std::string unescaped(const std::string& text) {
  std::string name;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      name += text[i];
      continue;
    }
    ++i;
    name += text[i] == 'n' ? '\n' : text[i];
  }
  return name;
}

// Every position of a list is in one bucket.
void expect_whole(const BucketCuts::Names& names, const BucketCuts::Members& members) {
  std::vector<std::size_t> places;
  for (const auto& bucket : members) places.insert(places.end(), bucket.begin(), bucket.end());
  std::ranges::sort(places);
  bool whole = places.size() == names.size();
  for (std::size_t i = 0; whole && i < places.size(); ++i) whole = places[i] == i;
  if (!whole) {
    fail<DataError>("[bucket] cuts of a list of {} name {} members, not each once", names.size(),
                    places.size());
  }
}

}  // namespace

const BucketCuts::Members* BucketCuts::find(const Names& names) const {
  const auto found = known_.find(names);
  return found == known_.end() ? nullptr : &found->second;
}

const BucketCuts::Members& BucketCuts::remember(Names names, Members members) {
  return known_.insert_or_assign(std::move(names), std::move(members)).first->second;
}

std::string BucketCuts::serialize() const {
  std::string text;
  for (const auto& [names, members] : known_) {
    text += fmt::format("list {}\n", names.size());
    for (const std::string& name : names) text += escaped(name) + "\n";
    for (const std::vector<std::size_t>& bucket : members) {
      text += fmt::format("bucket {}\n", fmt::join(bucket, " "));
    }
  }
  return text + "end\n";
}

BucketCuts BucketCuts::parse(const std::string& text) {
  BucketCuts cuts;
  std::istringstream lines(text);
  std::string line;
  bool ended = false;
  std::getline(lines, line);
  while (lines && !ended) {
    std::istringstream head(line);
    std::string word;
    std::size_t count = 0;
    head >> word >> count;
    ended = line == "end";
    if (ended) break;
    if (word != "list" || !head) fail<DataError>("[bucket] cuts with a line \"{}\"", line);
    Names names;
    while (names.size() < count && std::getline(lines, line)) names.push_back(unescaped(line));
    Members members;
    while (std::getline(lines, line) && line.starts_with("bucket ")) {
      std::istringstream places(line.substr(7));
      std::vector<std::size_t>& bucket = members.emplace_back();
      for (std::size_t place = 0; places >> place;) bucket.push_back(place);
    }
    expect_whole(names, members);
    cuts.remember(std::move(names), std::move(members));
  }
  if (!ended) fail<DataError>("[bucket] cuts that end in the middle");
  return cuts;
}

}  // namespace lockstep
