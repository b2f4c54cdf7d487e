// What a source or a transformation is inside the data room: a DatasetNode describes it and makes
// Cursors, which run through it. Each lies in a file of its own; transformations.h lists them.
//
// Where elements are rows of tensors in memory, cursors pass row numbers instead of elements, and
// whoever needs the bytes (batch) gathers them from the Table in one go.
#pragma once

#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/position.h"
#include "lockstep/data/runtime.h"

namespace lockstep {

class Table;
class RowPlacer;

// How many elements an epoch has where that is no number.
inline constexpr std::int64_t kInfinite = -1;
inline constexpr std::int64_t kUnknown = -2;

// More passes over a data set than anyone makes; a saved position with more is damaged.
inline constexpr std::int64_t kMostEpochs = std::numeric_limits<std::int32_t>::max();

// What a cursor is made for: a pass over the data, the share of it, and the iterator it belongs to.
struct Context {
  std::uint64_t epoch = 0;
  std::int64_t shard = 0;
  std::int64_t shards = 1;
  std::shared_ptr<Runtime> runtime;

  Context in_epoch(std::uint64_t other) const {
    Context context = *this;
    context.epoch = other;
    return context;
  }
};

// A position in an epoch of a node. Used by one thread at a time. It does nothing (opens no file,
// starts no thread) until the first element is asked for.
class Cursor {
 public:
  virtual ~Cursor() = default;

  // The next element; nothing at the end, and ever after. Nobody writes into its tensors for as
  // long as they are held. An exception ends the pass: the same one is thrown again after it.
  virtual std::optional<Element> next() = 0;

  // Passes over up to `count` elements; returns over how many.
  virtual std::int64_t skip(std::int64_t count);

  // The table whose rows the elements are; null where they are not rows.
  virtual const Table* table() const { return nullptr; }
  // The numbers of the next rows, as many as there are and fit; returns how many. For cursors that
  // have a table. Number n stands for row n % rows of the table, read in epoch n / rows.
  virtual std::int64_t next_rows(std::span<std::int64_t> rows);

  // Begins to make elements ahead of the first that is asked for, where the cursor does so at all;
  // its position stays at the beginning.
  virtual void start() {}
  // Whether all elements that are still to come are made already: whatever it reads is at its end.
  virtual bool all_made() const { return false; }

  // Asks a cursor that makes new elements to write them where `placer` says; false where it cannot.
  virtual bool write_to(RowPlacer&) { return false; }

  // Iterator::next_into.
  virtual std::optional<std::int64_t> next_into(std::span<Tensor> destination);

  // A cursor is one of two kinds. Some have a state: they write it, and go to one that a cursor of
  // a node with the same signature wrote. restore() is called at most once, before all else.
  //
  // The others (map, batch, prefetch) are where their input is, or was when it gave what they hand
  // out; they have no state to save, and restore() passes the reader on to their input.
  virtual bool has_state() const { return true; }
  virtual void save(PositionWriter& state) const = 0;
  virtual void restore(PositionReader& state) = 0;
  // Of a cursor without state: where its input was behind the last element handed out.
  virtual Position position();
  // About how many elements a saved state holds: taking one more often than that is waste.
  virtual std::int64_t state_size() const { return 1; }
};

class DatasetNode {
 public:
  virtual ~DatasetNode() = default;

  virtual std::string name() const = 0;  // "map", "shuffle": for reports
  virtual std::vector<std::shared_ptr<const DatasetNode>> inputs() const = 0;
  virtual std::vector<ElementSpec> element_spec() const = 0;
  virtual std::int64_t cardinality() const = 0;  // or kInfinite, kUnknown
  // What must agree for a position of one pipeline to mean the same in another:
  // "tensors(60000: u8 (28, 28)).shuffle(buffer 60000, seed 1).batch".
  virtual std::string signature() const = 0;
  // A cursor at the beginning of an epoch. It shares what it needs and may outlive the node.
  virtual std::unique_ptr<Cursor> cursor(const Context& context) const = 0;
  // Whether a pass may begin before the one before it has been consumed: not where a generator of
  // the user's might notice.
  virtual bool may_start_early() const { return true; }
};

using NodePtr = std::shared_ptr<const DatasetNode>;

// An element of a saved position, of a node with this spec. UsageError where it cannot be.
Element restored_element(PositionReader& state, const std::vector<ElementSpec>& spec);

// A cursor of a node as the ones above it use it: measured as that node's stage, and with a
// position that can be taken behind every element for next to nothing.
class Input {
 public:
  Input(NodePtr node, const Context& context);

  std::optional<Element> next();
  std::int64_t skip(std::int64_t count);
  const Table* table() const { return cursor_->table(); }
  std::int64_t next_rows(std::span<std::int64_t> rows);
  bool write_to(RowPlacer& placer) { return cursor_->write_to(placer); }
  void start() { cursor_->start(); }
  bool all_made() const { return cursor_->all_made(); }
  std::optional<std::int64_t> next_into(std::span<Tensor> destination);

  // Behind the last element given.
  Position position();
  // How many elements were given or passed over so far.
  std::int64_t count() const { return count_; }
  // The same, written down; a state of now where the cursor has one.
  void save(PositionWriter& state) const;
  static void save(const Position& position, PositionWriter& state);
  // The state in which each of any number of shards begins what these left over (rest.h).
  static void begin_rest(const std::vector<std::string>& former, PositionWriter& state);
  // At most once, before all else.
  void restore(PositionReader& state);

  std::int64_t state_size() const { return cursor_->state_size(); }
  const Context& context() const { return context_; }
  const NodePtr& node() const { return node_; }
  Stage& stage() const { return *stage_; }

 private:
  std::shared_ptr<const PositionWriter> state() const;

  NodePtr node_;
  Context context_;
  Stage* stage_;
  std::unique_ptr<Cursor> cursor_;
  Position since_;  // a state of the cursor's, and how many elements it gave since
  std::int64_t count_ = 0;
  std::exception_ptr error_;  // that ended the pass
};

}  // namespace lockstep
