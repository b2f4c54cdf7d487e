// How sources and transformations are implemented: a DatasetNode describes one and makes Cursors
// that iterate over it. Each has its own file; transformations.h lists them.
//
// If elements are rows of tensors in memory, cursors pass row numbers instead of elements, and the
// stage that needs the values (batch) gathers them from the Table all at once.
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
#include "lockstep/data/pipeline/position.h"
#include "lockstep/data/pipeline/runtime.h"

namespace lockstep {

class Table;
class RowPlacer;

// Cardinalities that are not numbers.
inline constexpr std::int64_t kInfinite = -1;
inline constexpr std::int64_t kUnknown = -2;

// Nobody trains for more epochs; a saved position with a larger number is damaged.
inline constexpr std::int64_t kMostEpochs = std::numeric_limits<std::int32_t>::max();

class PieceSelector;

// Shard `index` of `count`.
struct ShardIndex {
  std::int64_t index = 0;
  std::int64_t count = 1;
  bool operator==(const ShardIndex&) const = default;
};

// What a cursor belongs to: a pass over the data, a shard, and an iterator.
struct Context {
  std::uint64_t epoch = 0;
  std::int64_t shard = 0;
  std::int64_t shards = 1;
  std::shared_ptr<Runtime> runtime;

  // For one of several workers. The share is taken by the last batch of the pipeline: the policy
  // Data leaves each global batch's rows of the worker, File and Off make batches of fewer rows.
  std::optional<WorkerShare> share = {};
  ShardIndex files = {};  // the files that sources read, with the policy File
  bool ordered = false;   // all stages keep the order, so that all workers see the same batches
  // Selects the elements of a worker's pieces, below maps whose results others do not need.
  std::shared_ptr<PieceSelector> selector = {};

  // The shard of this context, whether shard() selects it or files are dealt out.
  ShardIndex own_shard() const {
    return files.count > 1 ? files : ShardIndex{.index = shard, .count = shards};
  }
  bool slices() const { return share && share->policy == AutoShardPolicy::Data; }
  Context without_share() const {
    Context context = *this;
    context.share.reset();
    context.selector = nullptr;
    return context;
  }

  Context in_epoch(std::uint64_t other) const {
    Context context = *this;
    context.epoch = other;
    return context;
  }
};

// What Cursor::next_into wrote.
struct RowsWritten {
  std::int64_t rows = 0;
  std::optional<BatchPiece> piece = {};
};

// A position in an epoch of a node. Used by one thread at a time. It does nothing (opens no file,
// starts no thread) until the first element is requested.
class Cursor {
 public:
  virtual ~Cursor() = default;

  // The next element; nullopt at the end and afterwards. Nobody writes into its tensors while they
  // are held. An exception ends the pass: later calls throw the same one again.
  virtual std::optional<Element> next() = 0;

  // Skips up to `count` elements; returns how many it skipped.
  virtual std::int64_t skip(std::int64_t count);

  // The table whose rows the elements are; null if they are not rows.
  virtual const Table* table() const { return nullptr; }
  // Writes the numbers of the next rows, at most rows.size(), and returns how many. Only for
  // cursors with a table. Number n is row n % R of the table's R rows, read in epoch n / R.
  virtual std::int64_t next_rows(std::span<std::int64_t> rows);

  // Starts to produce elements before the first is requested, if the cursor prefetches at all; its
  // position stays at the beginning.
  virtual void start() {}
  // Whether all remaining elements have been produced: its inputs are at their end.
  virtual bool all_made() const { return false; }

  // Asks a cursor that makes new elements to write them where `placer` says; false if it cannot.
  virtual bool write_to(RowPlacer&) { return false; }

  // Iterator::next_into.
  virtual std::optional<RowsWritten> next_into(std::span<Tensor> destination);

  // There are two kinds of cursors. Some have a state: they save it, and restore one that a cursor
  // of a node with the same signature saved. restore() is called at most once, first of all.
  //
  // The others (map, batch, prefetch) have no state to save: their position is that of their input
  // when it produced what they returned last. restore() passes the reader on to their input.
  virtual bool has_state() const { return true; }
  virtual void save(PositionWriter& state) const = 0;
  virtual void restore(PositionReader& state) = 0;
  // For cursors without state: the position of the input after the last element returned.
  virtual Position position();
  // About how many elements a saved state holds: saving more often than that is wasteful.
  virtual std::int64_t state_size() const { return 1; }
};

// What a node is to workers that divide the elements (worker_share.h).
struct ShareRules {
  // How a worker's rows of its elements are made with the policy Data: of whole elements; of the
  // same rows of its inputs' elements; or by the node itself, which is a batch.
  enum class Rows { OfWhole, OfInputs, Own } rows = Rows::OfWhole;
  // Whether each element is made of the next one of its only input, and its position is that of
  // the input: the elements that others need can be left out before it.
  bool one_to_one = false;
  std::int64_t batch = 0;  // rows of the batches that it makes; 0: it makes none
  // Whether its elements may be made of batches of another size.
  bool any_batch = true;
  bool opens = false;           // it opens data sets for the elements of its first input
  std::int64_t files = 0;       // that it reads; 0: it is not a list of files
  bool skips_for_free = false;  // a file that is skipped is not opened
  // What it gives if the files are dealt out: over all workers the elements of one worker; others;
  // or elements that are wrong.
  enum class Dealt { Same, Others, Wrong } dealt = Dealt::Same;
};

class DatasetNode {
 public:
  virtual ~DatasetNode() = default;

  virtual std::string name() const = 0;  // "map", "shuffle": for reports
  virtual std::vector<std::shared_ptr<const DatasetNode>> inputs() const = 0;
  virtual std::vector<ElementSpec> element_spec() const = 0;
  virtual std::int64_t cardinality() const = 0;  // or kInfinite, kUnknown
  // Positions can be exchanged between pipelines whose signatures are equal:
  // "tensors(60000: u8 (28, 28)).shuffle(buffer 60000, seed 1).batch".
  virtual std::string signature() const = 0;
  // A cursor at the beginning of an epoch. It may outlive the node.
  virtual std::unique_ptr<Cursor> cursor(const Context& context) const = 0;
  // Whether a pass may start before the previous one has been consumed: not if a user's generator
  // could notice.
  virtual bool may_start_early() const { return true; }
  virtual ShareRules share_rules() const { return {}; }
};

using NodePtr = std::shared_ptr<const DatasetNode>;

// What divided the elements before they were resharded: shard(), or files dealt out to workers.
enum class FormerParts { Shards, Files };

// Reads an element from a saved position. UsageError if it does not fit this spec.
Element restored_element(PositionReader& state, const std::vector<ElementSpec>& spec);

// A cursor of a node as its consumers use it: timed as the node's stage, and with a position that
// is cheap to take after every element.
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
  std::optional<RowsWritten> next_into(std::span<Tensor> destination);

  // The position after the last element returned: an earlier state, and how far to skip from there.
  Position position();
  // How many elements were returned or skipped so far.
  std::int64_t count() const { return count_; }
  // Writes the current position, with the current state if the cursor has one.
  void save(PositionWriter& state) const;
  static void save(const Position& position, PositionWriter& state);
  // Writes the state from which new shards continue what the former ones left (reshard_cursor.h).
  static void begin_rest(const std::vector<std::string>& former, FormerParts parts,
                         PositionWriter& state);
  // At most once, before anything else.
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
  Position since_;  // an earlier state of the cursor, and how many elements it returned since
  std::int64_t count_ = 0;
  std::exception_ptr error_;  // the one that ended the pass
};

}  // namespace lockstep
