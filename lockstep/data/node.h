// What a source or a transformation is inside the data room: a DatasetNode describes it and makes
// Cursors, which run through it. Each lies in a file of its own; transformations.h lists them.
//
// Where elements are rows of tensors in memory, cursors pass row numbers instead of elements, and
// whoever needs the bytes (batch) gathers them from the Table in one go.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/position.h"

namespace lockstep {

class Table;

// How many elements an epoch has where that is no number.
inline constexpr std::int64_t kInfinite = -1;
inline constexpr std::int64_t kUnknown = -2;

// A position in an epoch of a node. Used by one thread at a time.
class Cursor {
 public:
  virtual ~Cursor() = default;

  // The next element; nothing at the end, and ever after. Nobody writes into its tensors for as
  // long as they are held.
  virtual std::optional<Element> next() = 0;

  // Passes over up to `count` elements; returns over how many.
  virtual std::int64_t skip(std::int64_t count);

  // The table whose rows the elements are; null where they are not rows.
  virtual const Table* table() const { return nullptr; }
  // The numbers of the next rows, as many as there are and fit; returns how many. For cursors that
  // have a table.
  virtual std::int64_t next_rows(std::span<std::int64_t> rows);

  // Iterator::next_into.
  virtual std::optional<std::int64_t> next_into(std::span<Tensor> destination);

  // Appends the position, and goes to one that a cursor of a node with the same signature appended.
  // A restore that throws leaves the cursor where it was.
  virtual void save(PositionWriter& position) const = 0;
  virtual void restore(PositionReader& position) = 0;
};

class DatasetNode {
 public:
  virtual ~DatasetNode() = default;

  virtual std::vector<ElementSpec> element_spec() const = 0;
  virtual std::int64_t cardinality() const = 0;  // or kInfinite, kUnknown
  // What must agree for a position of one pipeline to mean the same in another:
  // "tensors(60000: u8 (28, 28)).shuffle(buffer 60000, seed 1).batch".
  virtual std::string signature() const = 0;
  // A cursor at the beginning of an epoch. It shares what it needs and may outlive the node.
  virtual std::unique_ptr<Cursor> cursor(std::uint64_t epoch) const = 0;
};

using NodePtr = std::shared_ptr<const DatasetNode>;

}  // namespace lockstep
