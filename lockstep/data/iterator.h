// Iterator: runs a dataset once, and holds a position that can be saved and set.
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

// A saved position whose elements (those in shuffle buffers, say) lie beside it, by reference: for
// each dtype, tensors whose values one after the other make a row that the bytes point into.
struct IteratorState {
  std::string bytes;
  std::map<DType, std::vector<Tensor>> values;

  bool empty() const { return bytes.empty(); }
};

class Iterator {
 public:
  virtual ~Iterator() = default;
  // The next element; nothing at the end. Its tensors stay as they are for as long as they are
  // held.
  virtual std::optional<Element> next() = 0;
  // The position, epoch and shard included, as bytes; exact for every transformation.
  virtual std::string save() const = 0;
  // Goes to a saved position; UsageError where it was saved by another kind of data set or another
  // shard, and the iterator stays where it was.
  virtual void restore(const std::string& position) = 0;
  // The same without a copy of the elements that the position holds.
  virtual IteratorState save_state() const = 0;
  virtual void restore_state(const IteratorState& state) = 0;
  // The next batch, written to the beginnings of these tensors: component i to destination[i],
  // which has its dtype, its inner extents and rows for a whole batch; UsageError where it has not.
  // Returns how many rows were written; nothing at the end.
  virtual std::optional<std::int64_t> next_into(std::span<Tensor> destination);
  // Begins to make elements before the first is asked for, where the data set ends with prefetch;
  // the position stays at the beginning. Nothing happens where a generator of the user's is read.
  virtual void start() {}
  // Whether all elements that are still to come are made already, so that the next pass may start.
  virtual bool all_made() const { return false; }
  // What every stage has done so far, which one limits, and what would help.
  virtual PipelineReport report() const = 0;
};

// Writes an element to the beginnings of these tensors, as next_into does; returns its rows.
std::int64_t copy_into(const Element& element, std::span<Tensor> destination);

// The positions in which m shards go on with an epoch that n shards began: positions[i] was saved
// by shard i of n. Every element that none of them had given yet is given by exactly one of the m.
// UsageError where one of the n is missing, doubled, or of another epoch or data set.
std::vector<std::string> reshard(const std::vector<std::string>& positions, std::int64_t shards);

}  // namespace lockstep
