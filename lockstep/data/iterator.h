// Iterator: one pass over a data set, with a position that can be saved and restored.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/element.h"
#include "lockstep/data/report.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// A saved position whose elements (such as those in shuffle buffers) are kept as references instead
// of copies. The tensors of a dtype, concatenated, form one array of values; the bytes hold offsets
// into it.
struct IteratorState {
  std::string bytes;
  std::map<DType, std::vector<Tensor>> values;

  bool empty() const { return bytes.empty(); }
};

class Iterator {
 public:
  virtual ~Iterator() = default;
  // The next element; nullopt at the end. Its tensors do not change while the caller holds them.
  virtual std::optional<Element> next() = 0;
  // The position, with epoch and shard, as bytes; exact for every transformation.
  virtual std::string save() const = 0;
  // Goes to a saved position. UsageError, and the iterator keeps its position, if it was saved by
  // another kind of data set or another shard. With the policy Data, a position is that of all
  // workers: any worker of any number of them continues from it.
  virtual void restore(const std::string& position) = 0;
  // The same without copying the elements that the position holds.
  virtual IteratorState save_state() const = 0;
  virtual void restore_state(const IteratorState& state) = 0;
  // Writes the next batch to the first rows of these tensors: component i to destination[i], which
  // must have its dtype and inner extents and room for a full batch (UsageError otherwise). Returns
  // the number of rows written; nullopt at the end.
  virtual std::optional<std::int64_t> next_into(std::span<Tensor> destination);
  // Where the rows of the last element returned lie in its global batch, for an iterator with
  // IteratorOptions::share and the policy Data; otherwise nullopt.
  virtual std::optional<BatchPiece> piece() const { return std::nullopt; }
  // If the data set ends with prefetch, starts to produce elements before the first is requested;
  // the position stays at the beginning. Does nothing if the data set reads a user's generator.
  virtual void start() {}
  // Whether all remaining elements have been produced, so that the next pass may start.
  virtual bool all_made() const { return false; }
  // What every stage has done so far, which one is the bottleneck, and what would help.
  virtual PipelineReport report() const = 0;
};

// Writes an element to the first rows of these tensors, as next_into does; returns its row count.
std::int64_t copy_into(const Element& element, std::span<Tensor> destination);

// The positions from which m shards continue an epoch that n shards began; positions[i] was saved
// by shard i of n, or by worker i of n with the policy File. Exactly one of the m returns each
// element that the n had not returned yet.
// UsageError if one of the n is missing, duplicate, or from another epoch or data set.
std::vector<std::string> reshard(const std::vector<std::string>& positions, std::int64_t shards);

}  // namespace lockstep
