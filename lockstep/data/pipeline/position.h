// Saved positions: little-endian words, strings and elements, one after the other, without tags.
// The signature at the beginning of every position ensures that reader and writer agree.
//
// A writer keeps elements by reference until its bytes are requested, so that a position can be
// taken often (after every prefetched batch) and written rarely. The values of elements are stored
// either in the bytes or separately, in one row of values per dtype; the bytes then hold offsets
// into the rows. A checkpoint writes the rows as tensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/element.h"

namespace lockstep {

// For each dtype, the tensors that make up its row when concatenated.
using ValueRows = std::map<DType, std::vector<Tensor>>;

class PositionWriter {
 public:
  void word(std::uint64_t value);
  void words(std::span<const std::int64_t> values);  // preceded by their number
  void text(std::string_view value);                 // preceded by its length
  void element(const Element& value);
  // The bytes of another writer, as a text.
  void nested(std::shared_ptr<const PositionWriter> other);
  std::string bytes() const;
  // The same, but appends the values of elements to the rows, by reference.
  std::string bytes_beside(ValueRows& rows) const;

 private:
  // Where elements are written: to the rows if there are any, otherwise to the bytes.
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
  // The files that elements were read from, and the numbers that stand for them in these bytes.
  using FileNumbers = std::map<std::string, std::uint64_t>;
  static void append(const Element& element, Sink& sink, FileNumbers& files);
  void append_to(Sink& sink) const;

  std::vector<Part> parts_;
  std::string tail_;
};

// Reads values from rows, in total no more than there are, so that damaged bytes cannot make it
// allocate without limit.
class RowReader {
 public:
  explicit RowReader(const ValueRows& rows);
  // A copy of the values from `begin` on. UsageError if the row does not have them.
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

// UsageError if the bytes end early or are invalid.
class PositionReader {
 public:
  // `rows`, if not null, must outlive the reader.
  explicit PositionReader(std::string_view bytes, RowReader* rows = nullptr)
      : rest_(bytes), rows_(rows) {}

  std::uint64_t word();
  // A word that must not exceed `limit`.
  std::int64_t count(std::int64_t limit);
  std::vector<std::int64_t> words();
  std::string_view text();
  // A reader of the bytes that PositionWriter::nested wrote.
  PositionReader nested() { return PositionReader(text(), rows_); }
  Element element();
  void expect_end() const;

 private:
  std::string_view take(std::uint64_t bytes);

  std::string_view rest_;
  RowReader* rows_;
  std::vector<std::shared_ptr<const std::string>> files_;  // named by elements so far
};

// A position in an input: an earlier state, and how many elements have been returned since.
struct Position {
  std::shared_ptr<const PositionWriter> base;
  std::int64_t skip = 0;  // elements to skip from there
};

}  // namespace lockstep
