// Saved positions: little-endian words, strings and elements, one after the other, without tags.
// That writer and reader mean the same is checked once, by the signature that every position begins
// with.
//
// A writer keeps elements by reference until its bytes are asked for, so that a position can be
// taken often (behind every batch that is made ahead of time) and written rarely.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/element.h"

namespace lockstep {

class PositionWriter {
 public:
  void word(std::uint64_t value);
  void words(std::span<const std::int64_t> values);  // their number and each of them
  void text(std::string_view value);                 // its length and its bytes
  void element(const Element& value);
  // What another writer made, as a text.
  void nested(std::shared_ptr<const PositionWriter> other);
  std::string bytes() const;

 private:
  // Bytes, followed by an element or by another position.
  struct Part {
    std::string bytes;
    Element element;
    std::shared_ptr<const PositionWriter> nested;
  };
  void append_to(std::string& bytes) const;

  std::vector<Part> parts_;
  std::string tail_;
};

// UsageError where the bytes end early or hold what cannot be.
class PositionReader {
 public:
  explicit PositionReader(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t word();
  // A word that counts something of which there are at most `limit`.
  std::int64_t count(std::int64_t limit);
  std::vector<std::int64_t> words();
  std::string_view text();
  Element element();
  void expect_end() const;

 private:
  std::string_view take(std::uint64_t bytes);

  std::string_view rest_;
};

// A place in what a cursor reads: a state that was taken some elements ago, and how far on it is.
struct Position {
  std::shared_ptr<const PositionWriter> base;
  std::int64_t skip = 0;  // elements to pass over from there
};

}  // namespace lockstep
