// Saved positions: little-endian words and strings, one after the other, without tags. That writer
// and reader mean the same is checked once, by the signature that every position begins with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

class PositionWriter {
 public:
  void word(std::uint64_t value);
  void text(std::string_view value);                        // its length and its bytes
  void append(std::string_view bytes) { bytes_ += bytes; }  // what another writer made
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// UsageError where the bytes end early or hold what cannot be.
class PositionReader {
 public:
  explicit PositionReader(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t word();
  // A word that counts something of which there are at most `limit`.
  std::int64_t count(std::int64_t limit);
  std::string_view text();
  void expect_end() const;

 private:
  std::string_view rest_;
};

}  // namespace lockstep
