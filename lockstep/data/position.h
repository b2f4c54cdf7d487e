// Saved positions: little-endian words, strings and elements, one after the other, without tags.
// That writer and reader mean the same is checked once, by the signature that every position begins
// with.
//
// A writer keeps elements by reference until its bytes are asked for, so that a position can be
// taken often (behind every batch that is made ahead of time) and written rarely. The values of
// elements are either in the bytes or beside them, in rows: one row of values for each dtype, that
// the bytes point into. A checkpoint writes the rows as tensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/element.h"

namespace lockstep {

// For each dtype, tensors whose values one after the other are a row.
using ValueRows = std::map<DType, std::vector<Tensor>>;

class PositionWriter {
 public:
  void word(std::uint64_t value);
  void words(std::span<const std::int64_t> values);  // their number and each of them
  void text(std::string_view value);                 // its length and its bytes
  void element(const Element& value);
  // What another writer made, as a text.
  void nested(std::shared_ptr<const PositionWriter> other);
  std::string bytes() const;
  // With the values of elements appended to the rows, by reference, instead of in the bytes.
  std::string bytes_beside(ValueRows& rows) const;

 private:
  // Where elements go: into the bytes, or where there are rows, into those.
  struct Sink {
    std::string bytes;
    ValueRows* rows = nullptr;
    std::map<DType, std::uint64_t> ends;  // of the rows, in values
  };
  // Bytes, followed by an element or by another position.
  struct Part {
    std::string bytes;
    Element element;
    std::shared_ptr<const PositionWriter> nested;
  };
  // Files that elements were read in, by the numbers that stand for them in these bytes.
  using FileNumbers = std::map<std::string, std::uint64_t>;
  static void append(const Element& element, Sink& sink, FileNumbers& files);
  void append_to(Sink& sink) const;

  std::vector<Part> parts_;
  std::string tail_;
};

// Gives out values of rows; each value once, so that damaged bytes cannot ask for more than there
// is.
class RowReader {
 public:
  explicit RowReader(const ValueRows& rows);
  // A copy of the values from `begin` on. UsageError where the row has none there.
  Tensor take(DType dtype, Shape shape, std::uint64_t begin);

 private:
  struct Row {
    std::vector<std::uint64_t> begins;  // of the tensors, in values
    const std::vector<Tensor>* tensors = nullptr;
    std::uint64_t values = 0;
    std::uint64_t taken = 0;
  };
  std::map<DType, Row> rows_;
};

// UsageError where the bytes end early or hold what cannot be.
class PositionReader {
 public:
  // `rows`, where there are any, must outlive the reader.
  explicit PositionReader(std::string_view bytes, RowReader* rows = nullptr)
      : rest_(bytes), rows_(rows) {}

  std::uint64_t word();
  // A word that counts something of which there are at most `limit`.
  std::int64_t count(std::int64_t limit);
  std::vector<std::int64_t> words();
  std::string_view text();
  // Of what another writer made (PositionWriter::nested).
  PositionReader nested() { return PositionReader(text(), rows_); }
  Element element();
  void expect_end() const;

 private:
  std::string_view take(std::uint64_t bytes);

  std::string_view rest_;
  RowReader* rows_;
  std::vector<std::shared_ptr<const std::string>> files_;  // that elements named so far
};

// A place in what a cursor reads: a state that was taken some elements ago, and how far on it is.
struct Position {
  std::shared_ptr<const PositionWriter> base;
  std::int64_t skip = 0;  // elements to pass over from there
};

}  // namespace lockstep
